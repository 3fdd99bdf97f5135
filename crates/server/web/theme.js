// Sets the colours before the page is drawn. It is no module, because modules run after the first drawing.
(() => {
    try {
        const theme = localStorage.getItem("riffle.theme");
        if (theme === "light" || theme === "dark") {
            document.documentElement.dataset.theme = theme;
        }
    } catch {
        // Without storage the page has the system's colours.
    }
})();
