# Makes PDFs by the programs that people use, with known words beside them. Usage: corpus_tools.py OUT
# Needs reportlab, pikepdf, pymupdf and typst of PyPI; libreoffice-writer, chromium, pandoc, texlive-latex-recommended, lmodern, groff, ghostscript,
# qpdf, tesseract-ocr, weasyprint, fonts-dejavu-core, fonts-noto-core and fonts-noto-cjk of Debian.
import os,sys,subprocess,tempfile,shutil
from words import R,W,sent,para,table,HEBREW,ARABIC,HINDI,CHINESE
import words
out=os.path.abspath(sys.argv[1]); os.makedirs(out,exist_ok=True)
only=sys.argv[2:]
tmp=tempfile.mkdtemp()
def known(name,t): words.known(out,name,t)
def run(*a,**k):
    r=subprocess.run(a,capture_output=True,text=True,cwd=tmp,timeout=180,**k)
    if r.returncode: print(a[0],r.returncode,(r.stderr or r.stdout)[-300:])
    return r.returncode==0
def keep(made,name,t):
    if os.path.exists(made): shutil.move(made,f'{out}/{name}.pdf'); known(name,t)
    else: print('not made:',name)
def wanted(group): return not only or group in only
def td(rows): return ''.join('<tr>'+''.join(f'<td>{x}</td>' for x in r)+'</tr>' for r in rows)
def flat(rows): return '\n'.join(' '.join(r) for r in rows)
def chromium(name,html,t,lang='en'):
    open(f'{tmp}/c.html','w').write(f'<!doctype html><html lang={lang}><meta charset=utf-8>{html}')
    run('chromium','--headless','--no-sandbox','--disable-gpu','--no-pdf-header-footer',f'--print-to-pdf={tmp}/c.pdf',f'file://{tmp}/c.html')
    keep(f'{tmp}/c.pdf',name,t)
def office(name,source,ending,t,filter='pdf'):
    open(f'{tmp}/o.{ending}','w').write(source)
    run('soffice','--headless','--convert-to',filter,f'o.{ending}'); keep(f'{tmp}/o.pdf',name,t)
def latex(name,body,t,head='',kind='article'):
    open(f'{tmp}/l.tex','w').write('\\documentclass{%s}\n%s\n\\begin{document}\n%s\n\\end{document}\n'%(kind,head,body) if kind[0]!='[' else '\\documentclass%s\n%s\n\\begin{document}\n%s\n\\end{document}\n'%(kind,head,body))
    run('pdflatex','-interaction=batchmode','l.tex'); run('pdflatex','-interaction=batchmode','l.tex'); keep(f'{tmp}/l.pdf',name,t)
P=[para(6) for _ in range(10)]; rows=table(); B=para(4); E=para(4)
html=''.join(f'<p>{x}</p>' for x in P); text='\n'.join(P)
if wanted('chromium'):
    chromium('ch_prose',html,text)
    chromium('ch_justified',f'<style>p{{text-align:justify;hyphens:auto}}</style>{html}',text)
    chromium('ch_two',f'<style>div{{columns:2}}</style><h1>Title over all columns</h1><div>{html}</div>','Title over all columns\n'+text)
    chromium('ch_three',f'<style>div{{columns:3;font-size:9pt;text-align:justify;hyphens:auto}}</style><div>{html}</div>',text)
    chromium('ch_table',f'<p>{B}</p><table border=1>{td(rows)}</table><p>{E}</p>','\n'.join([B,flat(rows),E]))
    long=[[f'Row {i}',sent(14),sent(9)] for i in range(12)]
    chromium('ch_cells',f'<p>{B}</p><table border=1>{td(long)}</table><p>{E}</p>','\n'.join([B,flat(long),E]))
    chromium('ch_hebrew',f'<body dir=rtl>'+f'<p>{HEBREW}</p>'*6,'\n'.join([HEBREW]*6),'he')
    chromium('ch_arabic',f'<body dir=rtl>'+f'<p>{ARABIC}</p>'*6,'\n'.join([ARABIC]*6),'ar')
    chromium('ch_hindi',f'<p>{HINDI}</p>'*6,'\n'.join([HINDI]*6),'hi')
    chromium('ch_cjk',f'<p>{CHINESE*3}</p>',CHINESE*3,'zh')
    chromium('ch_vertical',f'<body style="writing-mode:vertical-rl;height:600px">'+f'<p>{CHINESE*2}</p>'*3,'\n'.join([CHINESE*2]*3),'ja')
    chromium('ch_korean',('<p>'+'안녕하세요 한국어 문서입니다 오늘은 날씨가 좋습니다 '*5+'</p>')*3,('안녕하세요 한국어 문서입니다 오늘은 날씨가 좋습니다 '*5+'\n')*3,'ko')
    shy=' '.join(w[:3]+'&shy;'+w[3:] if len(w)>6 else w for w in (text*2).split())
    chromium('ch_shy',f'<div style="width:220px;text-align:justify">{shy}</div>',text*2)
    chromium('ch_small_caps',f'<style>p{{font-variant:small-caps}}</style>{html}',text)
    chromium('ch_scripts',''.join(f'<p>{x} see<sup>{i}</sup> and H<sub>2</sub>O again.</p>' for i,x in enumerate(P)),'\n'.join(f'{x} see{i} and H2O again.' for i,x in enumerate(P)))
    chromium('ch_lists','<ol>'+''.join(f'<li>{x}</li>' for x in P[:4])+'</ol><ul>'+''.join(f'<li>{x}</li>' for x in P[4:])+'</ul>',' '.join(P))
    chromium('ch_rotated',f'<div style="transform:rotate(-90deg);position:absolute;left:-150px;top:300px;width:400px">{sent()}</div><div style="margin-left:120px">{html}</div>',text)
    chromium('ch_aside',f'<style>aside{{float:right;width:30%;margin-left:2em;font-size:9pt}}</style><aside>{P[0]}</aside>'+''.join(f'<p>{x}</p>' for x in P[1:]),'\n'.join(P))
    chromium('ch_grid','<div style="display:grid;grid-template-columns:1fr 1fr 1fr;gap:2em">'+''.join(f'<div>{x}</div>' for x in P[:6])+'</div>','\n'.join(P[:6]))
    chromium('ch_code','<pre>'+'\n'.join(f'    if x[{i}] == "{R.choice(W)}": return {R.choice(W)}({i})' for i in range(40))+'</pre>','')
    import re
    src=open(f'{tmp}/c.html').read(); known('ch_code',re.sub('<[^>]*>','',src))
    chromium('ch_mixed',f'<p>Größe naïve café Привет мир Ελληνικά офис эффект łódź ğüşiöç Việt Nam tiếng. {P[0]}</p>'*4,'\n'.join([f'Größe naïve café Привет мир Ελληνικά офис эффект łódź ğüşiöç Việt Nam tiếng. {P[0]}']*4))
    chromium('ch_thai_georgian','<p>საქართველო ლამაზი ქვეყანაა Հայաստան գեղեցիկ երկիր է</p>'*5,'საქართველო ლამაზი ქვეყანაა Հայաստան գեղեցիկ երկիր է\n'*5)
md='\n\n'.join((f'# Heading {i}\n\n' if i%3==0 else '')+x+(f'[^{i}]' if i%4==1 else '') for i,x in enumerate(P))
notes=[(i,f'Note {i} says '+sent(6)) for i in range(len(P)) if i%4==1]
md+='\n\n'+'\n\n'.join(f'[^{i}]: {n}' for i,n in notes)
plain='\n'.join((f'Heading {i}\n' if i%3==0 else '')+x for i,x in enumerate(P))
if wanted('office'):
    open(f'{tmp}/p.md','w').write(md)
    run('pandoc','p.md','-o','p.docx'); run('soffice','--headless','--convert-to','pdf','p.docx'); keep(f'{tmp}/p.pdf','lo_docx',plain)
    run('pandoc','p.md','-o','p.odt'); run('soffice','--headless','--convert-to','pdf','p.odt'); keep(f'{tmp}/p.pdf','lo_odt',plain)
    run('soffice','--headless','--convert-to','pdf:writer_pdf_Export:{"SelectPdfVersion":{"type":"long","value":"2"},"UseTaggedPDF":{"type":"boolean","value":"true"}}','p.odt'); keep(f'{tmp}/p.pdf','lo_pdfa',plain)
    for n,t,l in [('hebrew',HEBREW,'he'),('arabic',ARABIC,'ar')]:
        open(f'{tmp}/p.md','w').write(f'---\ndir: rtl\nlang: {l}\n---\n'+'\n\n'.join([t]*6)); run('pandoc','p.md','-o','p.docx'); run('soffice','--headless','--convert-to','pdf','p.docx'); keep(f'{tmp}/p.pdf','lo_'+n,'\n'.join([t]*6))
    open(f'{tmp}/p.md','w').write(B+'\n\n| a | b | c | d |\n|---|---|---|---|\n'+'\n'.join('| '+' | '.join(r)+' |' for r in rows)+'\n\n'+E); run('pandoc','p.md','-o','p.docx'); run('soffice','--headless','--convert-to','pdf','p.docx'); keep(f'{tmp}/p.pdf','lo_table','\n'.join([B,'a b c d',flat(rows),E]))
    fodt='''<?xml version="1.0" encoding="UTF-8"?><office:document xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" xmlns:style="urn:oasis:names:tc:opendocument:xmlns:style:1.0" xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0" xmlns:fo="urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0" xmlns:svg="urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0" office:version="1.3" office:mimetype="application/vnd.oasis.opendocument.text"><office:automatic-styles><style:style style:name="S" style:family="section"><style:section-properties><style:columns fo:column-count="%d" fo:column-gap="0.6cm"/></style:section-properties></style:style><style:style style:name="J" style:family="paragraph"><style:paragraph-properties fo:text-align="justify"/><style:text-properties fo:font-size="10pt" style:font-name="%s" fo:language="en" fo:country="GB" fo:hyphenate="true"/></style:style></office:automatic-styles><office:body><office:text><text:h text:outline-level="1">Title over the columns</text:h><text:section text:style-name="S" text:name="s">%s</text:section></office:text></office:body></office:document>'''
    for n,font in [(2,'Liberation Serif'),(3,'DejaVu Sans')]:
        office(f'lo_columns{n}',fodt%(n,font,''.join(f'<text:p text:style-name="J">{x}</text:p>' for x in P)),'fodt','Title over the columns\n'+text)
if wanted('latex'):
    tp='\n\n'.join(P)
    latex('tex_ot1',tp,text)
    latex('tex_type3',tp,text,'\\usepackage[T1]{fontenc}\\usepackage{ae}' if False else '\\usepackage[T1]{fontenc}')
    latex('tex_lm',tp,text,'\\usepackage[T1]{fontenc}\\usepackage{lmodern}')
    latex('tex_two',tp,text,'\\usepackage[T1]{fontenc}\\usepackage{lmodern}','[twocolumn]{article}')
    acc='Größe naïve café élève Ångström señor façade Čapek łódź über œuvre Ελλ'.replace(' Ελλ','')
    latex('tex_accents','\n\n'.join([acc+' '+x for x in P]),'\n'.join(acc+' '+x for x in P),'\\usepackage[utf8]{inputenc}')
    latex('tex_footnotes','\n\n'.join(x+(f'\\footnote{{Remark {i} about {R.choice(W)}.}}' if i%3==0 else '') for i,x in enumerate(P)),text)
    latex('tex_caps','\n\n'.join('\\textsc{%s}'%x for x in P),text,'\\usepackage[T1]{fontenc}\\usepackage{lmodern}')
    latex('tex_table',B+'\n\n\\begin{tabular}{llrr}\n'+'\\\\\n'.join(' & '.join(r) for r in rows)+'\n\\end{tabular}\n\n'+E,'\n'.join([B,flat(rows),E]))
    latex('tex_book','\\frontmatter\\tableofcontents\\mainmatter '+''.join(f'\\chapter{{Chapter of {R.choice(W)}}} {x}\n\n{x}\n' for x in P),'\n'.join(f'{x}\n{x}' for x in P),'\\usepackage{hyperref}','book')
    latex('tex_lists','\\begin{enumerate}'+''.join(f'\\item {x}' for x in P[:5])+'\\end{enumerate}\\begin{description}'+''.join(f'\\item[word {i}] {x}' for i,x in enumerate(P[5:]))+'\\end{description}','\n'.join(P[:5]+[f'word {i} {x}' for i,x in enumerate(P[5:])]))
    if os.path.exists(f'{out}/tex_two.pdf'):
        run('gs','-q','-dNOPAUSE','-dBATCH','-sDEVICE=pdfwrite',f'-sOutputFile={out}/gs_tex_two.pdf',f'{out}/tex_two.pdf'); known('gs_tex_two',text)
    open(f'{tmp}/g.ms','w').write('.NH\nHeading of all\n'+''.join('.PP\n'+x+'\n' for x in P))
    run('sh','-c','groff -ms -Tps g.ms > g.ps && ps2pdf g.ps g.pdf'); keep(f'{tmp}/g.pdf','groff_ms','Heading of all\n'+text)
if wanted('typst'):
    import typst
    def ty(name,source,t):
        open(f'{tmp}/t.typ','w').write(source)
        try: typst.compile(f'{tmp}/t.typ',output=f'{out}/{name}.pdf'); known(name,t)
        except Exception as x: print(name,x)
    ty('ty_prose','#set par(justify: true)\n'+'\n\n'.join(P),text)
    ty('ty_table',B+'\n\n#table(columns:4,'+','.join(f'[{c}]' for r in rows for c in r)+')\n\n'+E,'\n'.join([B,flat(rows),E]))
    ty('ty_caps','#smallcaps['+'\n\n'.join(P)+']',text)
    ty('ty_notes','\n\n'.join(x+f'#footnote[Remark {i}.]' for i,x in enumerate(P)),text)
    for n,t,l in [('hebrew',HEBREW,'he'),('arabic',ARABIC,'ar'),('hindi',HINDI,'hi'),('cjk',CHINESE,'zh')]:
        ty('ty_'+n,f'#set text(lang:"{l}")\n'+'\n\n'.join([t]*5),'\n'.join([t]*5))
if wanted('pages'):
    import pikepdf
    from reportlab.pdfgen import canvas
    from reportlab.lib.pagesizes import A4
    base=f'{out}/ch_two.pdf'
    for a in (90,180,270):
        if os.path.exists(base): run('qpdf',base,f'{out}/rotated{a}.pdf',f'--rotate=+{a}'); known(f'rotated{a}',open(f'{out}/ch_two.known').read())
    # forms: fields with and without looks
    c=canvas.Canvas(f'{out}/form_fields.pdf'); f=c.acroForm; lines=[]
    for i in range(8):
        label,value=f'Question {i} about {R.choice(W)}',f'{R.choice(W)} {R.choice(W)} {i}'
        c.drawString(50,760-40*i,label); f.textfield(name=f'f{i}',value=value,x=260,y=752-40*i,width=250,height=22); lines.append(label+' '+value)
    f.choice(name='ch',value='Blue whale',options=['Red fox','Blue whale'],x=260,y=400,width=150,height=22); c.drawString(50,408,'Animal'); lines.append('Animal Blue whale')
    c.save(); known('form_fields','\n'.join(lines))
    with pikepdf.open(f'{out}/form_fields.pdf') as d:
        for a in d.pages[0].Annots:
            if '/AP' in a: del a['/AP']
        d.Root.AcroForm.NeedAppearances=True; d.save(f'{out}/form_bare.pdf')
    known('form_bare','\n'.join(lines))
    with pikepdf.open(f'{out}/form_fields.pdf') as d:
        for a in d.pages[0].Annots:
            for k in ('/V','/FT','/T'):
                if k in a: del a[k]
        if '/AcroForm' in d.Root: del d.Root['/AcroForm']
        d.save(f'{out}/form_looks.pdf')
    known('form_looks','\n'.join(lines))
    # free text and notes
    import fitz
    d=fitz.open(); p=d.new_page(); y=60; lines=[]
    for x in P[:3]: p.insert_textbox((50,y,550,y+110),x,fontsize=10); y+=120; lines.append(x)
    t=sent(8); p.add_freetext_annot((50,y,500,y+40),t,fontsize=10); lines.append(t); d.save(f'{out}/mu_freetext.pdf'); known('mu_freetext','\n'.join(lines))
    d=fitz.open()
    for i in range(3): p=d.new_page(); p.insert_htmlbox((50,50,550,780),''.join(f'<p>{x}</p>' for x in P[3*i:3*i+3]))
    d.set_toc([[1,'One',1],[1,'Two',2],[2,'Within two',3]]); d.save(f'{out}/mu_html.pdf'); known('mu_html','\n'.join(P[:9]))
    # a picture of a page with invisible text over it
    d=fitz.open(f'{out}/ch_prose.pdf' if os.path.exists(f'{out}/ch_prose.pdf') else f'{out}/mu_html.pdf'); s=fitz.open()
    for p in d:
        pix=p.get_pixmap(dpi=60); q=s.new_page(width=p.rect.width,height=p.rect.height); q.insert_image(q.rect,pixmap=pix)
        for w in p.get_text('words'): q.insert_text((w[0],w[3]-2),w[4],fontsize=(w[3]-w[1])*.75,render_mode=3)
    s.save(f'{out}/scan_words.pdf'); known('scan_words',open(f'{out}/ch_prose.known').read() if os.path.exists(f'{out}/ch_prose.known') else '\n'.join(P[:9]))
    pix=d[0].get_pixmap(dpi=150); pix.save(f'{tmp}/s.png')
    if run('tesseract','s.png','s','pdf'): keep(f'{tmp}/s.pdf','scan_tesseract','\n'.join(open(f'{out}/scan_words.known').read().split('\n')[:4]))
    # letters placed one by one, without spaces; and words in a mixed order
    c=canvas.Canvas(f'{out}/letters.pdf',pagesize=A4); c.setFont('Times-Roman',11); y=780; lines=[]
    for _ in range(30):
        s=sent(9); x=50.0
        for l in s:
            if l!=' ': c.drawString(x,y,l)
            x+=c.stringWidth(l,'Times-Roman',11)
        y-=16; lines.append(s)
    c.save(); known('letters','\n'.join(lines))
    c=canvas.Canvas(f'{out}/shuffled.pdf',pagesize=A4); c.setFont('Helvetica',11); parts=[]; lines=[]; y=780
    for _ in range(30):
        s=sent(9); x=50.0; lines.append(s)
        for w in s.split(): parts.append((x,y,w)); x+=c.stringWidth(w+' ','Helvetica',11)
        y-=16
    R.shuffle(parts)
    for x,y,w in parts: c.drawString(x,y,w)
    c.save(); known('shuffled','\n'.join(lines))
    # spaces by word spacing, letters wide apart, narrow letters
    c=canvas.Canvas(f'{out}/spacing.pdf',pagesize=A4); y=790; lines=[]
    for i in range(36):
        s=sent(7); t=c.beginText(50,y); t.setFont('Times-Roman',10); t.setCharSpace([0,0.5,1.5,-0.2][i%4]); t.setWordSpace([0,3][i%2]); t.setHorizScale([100,80,120][i%3]); t.textOut(s); c.drawText(t); y-=20; lines.append(s)
    c.save(); known('spacing','\n'.join(lines))
    # a header, a footer and notes on every page of a two-sided book, with labels and an outline
    c=canvas.Canvas(f'{out}/book.pdf',pagesize=A4); lines=[]
    from reportlab.lib.utils import simpleSplit
    for n in range(24):
        c.setFont('Times-Italic',9); c.drawString(50 if n%2 else 300,810,f'Chapter {n//6+1}: Of ships and harbours' if n%2 else 'The Merchant of the Valley'); c.drawString(540 if n%2==0 else 40,810,str(n+1))
        y=770; c.setFont('Times-Roman',11)
        if n%6==0: c.bookmarkPage(f'c{n}'); c.addOutlineEntry(f'Chapter {n//6+1}',f'c{n}'); c.setFont('Times-Bold',16); c.drawString(50,y,f'Chapter {n//6+1}'); lines.append(f'Chapter {n//6+1}'); y-=40; c.setFont('Times-Roman',11)
        for _ in range(4):
            p=para(4); lines.append(p)
            for l in simpleSplit(p,'Times-Roman',11,490): c.drawString(50,y,l); y-=14
            y-=10
        c.setFont('Times-Roman',8); note=f'{n+1} Compare the remark on page {n+3} of the ledger.'; c.drawString(50,60,note); lines.append(note)
        c.showPage()
    c.save(); known('book','\n'.join(lines))
shutil.rmtree(tmp)
