// Sets the colours before the page is drawn. It is no module, so that nothing is drawn in the wrong ones first.
(() => {
    try {
        const theme = localStorage.getItem("riffle.theme");
        if (theme === "light" || theme === "dark") {
            document.documentElement.dataset.theme = theme;
        }
    } catch {
        // Without storage the system's colours stay.
    }
})();
