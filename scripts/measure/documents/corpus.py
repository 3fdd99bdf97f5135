# Makes PDFs with known words beside them. Usage: corpus.py OUT
# Needs reportlab, fpdf2 and typst of PyPI; ghostscript, poppler-utils, qpdf, weasyprint, fonts-dejavu-core, fonts-noto-core and fonts-noto-cjk of Debian.
import os,sys,subprocess
from words import R,W,sent,para
import words
out=sys.argv[1]; os.makedirs(out,exist_ok=True)
def known(name,t): words.known(out,name,t)
from reportlab.lib.pagesizes import A4
from reportlab.platypus import *
from reportlab.lib.styles import getSampleStyleSheet, ParagraphStyle
from reportlab.lib.enums import TA_JUSTIFY
from reportlab.pdfgen import canvas
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.cidfonts import UnicodeCIDFont
from reportlab.pdfbase.ttfonts import TTFont
S=getSampleStyleSheet()
# plain prose with headings
ps=[para() for _ in range(14)]
fl=[]; k=[]
for i,p in enumerate(ps):
    if i%4==0: h=f"Heading {i} about {R.choice(W)}"; fl.append(Paragraph(h,S['Heading1'])); k.append(h)
    fl.append(Paragraph(p,S['BodyText'])); k.append(p)
SimpleDocTemplate(f'{out}/rl_prose.pdf',pagesize=A4).build(fl); known('rl_prose','\n'.join(k))
# two columns justified
J=ParagraphStyle('j',parent=S['BodyText'],alignment=TA_JUSTIFY,fontName='Times-Roman')
ps=[para(7) for _ in range(16)]
doc=BaseDocTemplate(f'{out}/rl_two.pdf',pagesize=A4)
f1=Frame(50,50,240,740); f2=Frame(305,50,240,740)
doc.addPageTemplates([PageTemplate(frames=[f1,f2])]); doc.build([Paragraph(p,J) for p in ps]); known('rl_two','\n'.join(ps))
# title over two columns, and page header/footer
def deco(c,d):
    c.setFont('Helvetica',9); c.drawString(50,815,'Journal of Harbours and Ledgers'); c.drawCentredString(300,25,f'{d.page}')
doc=BaseDocTemplate(f'{out}/rl_header.pdf',pagesize=A4)
doc.addPageTemplates([PageTemplate(frames=[f1,f2],onPage=deco)]); ps=[para(7) for _ in range(50)]
doc.build([Paragraph(p,J) for p in ps]); known('rl_header','\n'.join(ps))
# table
rows=[[f'Item {i}',R.choice(W)+' '+R.choice(W),str(R.randint(10,999)),f'{R.random()*100:.2f}'] for i in range(30)]
b=para(4); e=para(4)
SimpleDocTemplate(f'{out}/rl_table.pdf',pagesize=A4).build([Paragraph(b,S['BodyText']),Table(rows),Paragraph(e,S['BodyText'])])
known('rl_table',b+'\n'+'\n'.join(' '.join(r) for r in rows)+'\n'+e)
# CJK standard fonts
for fn,txt in [('STSong-Light','春眠不觉晓处处闻啼鸟夜来风雨声花落知多少'),('HeiseiMin-W3','日本語の文章をここに書きます東京と大阪'),('HYSMyeongJo-Medium','안녕하세요 한국어 문서입니다'),('MSung-Light','繁體中文文件測試')]:
    pdfmetrics.registerFont(UnicodeCIDFont(fn)); c=canvas.Canvas(f'{out}/rl_cid_{fn}.pdf'); c.setFont(fn,12); c.drawString(72,700,txt); c.save(); known(f'rl_cid_{fn}',txt)
# rotated page and rotated text
c=canvas.Canvas(f'{out}/rl_rot.pdf'); t=[sent() for _ in range(10)]
c.setPageRotation(90)
for i,s in enumerate(t): c.saveState(); c.translate(60+i*20,60); c.rotate(90); c.drawString(0,0,s); c.restoreState()
c.save(); known('rl_rot','\n'.join(t))
# fpdf2
from fpdf import FPDF
p=FPDF(); p.add_page(); p.set_font('Helvetica',size=11); ps=[para() for _ in range(8)]
for x in ps: p.multi_cell(0,6,x,new_x='LMARGIN',new_y='NEXT')
p.output(f'{out}/fpdf.pdf'); known('fpdf','\n'.join(ps))
p=FPDF(); p.add_page(); p.add_font('D',fname='/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf'); p.set_font('D',size=11)
t='Größe naïve café Привет мир как дела Ελληνικά γράμματα офис эффект '+sent(); 
for _ in range(5): p.multi_cell(0,6,t,new_x='LMARGIN',new_y='NEXT')
p.output(f'{out}/fpdf_utf.pdf'); known('fpdf_utf','\n'.join([t]*5))
# html by weasyprint (pango): columns, table, RTL, Devanagari, CJK, hyphens, footnote
def weasy(name,html,k,lang='en'):
    open(f'{out}/{name}.html.src','w').write(f'<html lang={lang}><meta charset=utf-8>{html}')
    r=subprocess.run(['weasyprint',f'{out}/{name}.html.src',f'{out}/{name}.pdf'],capture_output=True,text=True)
    if r.returncode: print(name,r.stderr[-300:])
    os.remove(f'{out}/{name}.html.src'); known(name,k)
ps=[para(6) for _ in range(12)]; P=''.join(f'<p>{x}</p>' for x in ps)
weasy('wp_prose',f'<style>p{{text-align:justify;hyphens:auto}}</style>{P}','\n'.join(ps))
weasy('wp_two',f'<style>div{{columns:2;text-align:justify;hyphens:auto}}</style><h1>Great title over all</h1><div>{P}</div>','Great title over all\n'+'\n'.join(ps))
weasy('wp_three',f'<style>div{{columns:3;font-size:9pt}}</style><div>{P}</div>','\n'.join(ps))
tr=''.join('<tr>'+''.join(f'<td>{x}</td>' for x in r)+'</tr>' for r in rows)
weasy('wp_table',f'<p>{b}</p><table>{tr}</table><p>{e}</p>',b+'\n'+'\n'.join(' '.join(r) for r in rows)+'\n'+e)
he=words.HEBREW
ar=words.ARABIC
de=words.HINDI
weasy('wp_hebrew',f'<body dir=rtl>'+f'<p>{he}</p>'*4,'\n'.join([he]*4),'he')
weasy('wp_arabic',f'<body dir=rtl>'+f'<p>{ar}</p>'*4,'\n'.join([ar]*4),'ar')
weasy('wp_deva',f'<p>{de}</p>'*4,'\n'.join([de]*4),'hi')
cj=words.CHINESE
weasy('wp_cjk',f'<p lang=zh>{cj*3}</p>',cj*3,'zh')
weasy('wp_mixed',f'<p>The word {he[:5]} is Hebrew and Привет is Russian, x<sup>2</sup> and H<sub>2</sub>O too.</p><ul><li>{ps[0]}</li><li>{ps[1]}</li></ul><ol><li>{ps[2]}</li></ol>',f'The word {he[:5]} is Hebrew and Привет is Russian, x2 and H2O too. {ps[0]} {ps[1]} {ps[2]}')
weasy('wp_margin',"<style>@page{@top-left{content:'A running title'}@bottom-center{content:counter(page)}} p{break-after:auto}</style>"+''.join(f'<h2>Part {i}</h2><p>{x}</p>' for i,x in enumerate(ps*4)),'\n'.join(f'Part {i} {x}' for i,x in enumerate(ps*4)))
# ghostscript: postscript with ps2pdf of several of these, and by pdfwrite
for n in ['rl_two','wp_two','rl_table','wp_prose','wp_hebrew','rl_prose']:
    r=subprocess.run(['gs','-q','-dNOPAUSE','-dBATCH','-sDEVICE=pdfwrite',f'-sOutputFile={out}/gs_{n}.pdf',f'{out}/{n}.pdf'],capture_output=True,text=True)
    known(f'gs_{n}',open(f'{out}/{n}.known').read())
for n in ['rl_two','wp_prose','rl_table']:
    subprocess.run(['pdftops',f'{out}/{n}.pdf',f'{out}/x.ps']); subprocess.run(['ps2pdf',f'{out}/x.ps',f'{out}/ps_{n}.pdf']); known(f'ps_{n}',open(f'{out}/{n}.known').read())
subprocess.run(f'rm -f {out}/x.ps',shell=True)
# typst
try:
    import typst
    body='\n\n'.join(ps)
    open(f'{out}/t.typ','w').write('#set par(justify: true)\n#set page(columns: 2, numbering: "1")\n= Heading of all\n'+body+' #footnote[A note below the text]\n')
    typst.compile(f'{out}/t.typ',output=f'{out}/typst_two.pdf'); known('typst_two','Heading of all\n'+'\n'.join(ps)+' A note below the text'); os.remove(f'{out}/t.typ')
except Exception as x: print('typst',x)
# encryption by qpdf
for n,a in [('rc4','--encrypt "" own 128 --use-aes=n --'),('aes128','--encrypt "" own 128 --use-aes=y --'),('aes256','--encrypt "" own 256 --'),('rc40','--encrypt "" own 40 --'),('objstm','--object-streams=generate'),('linear','--linearize')]:
    r=subprocess.run(f'qpdf --allow-weak-crypto {a} {out}/rl_prose.pdf {out}/qpdf_{n}.pdf',shell=True,capture_output=True,text=True)
    if r.returncode: print(n,r.stderr[-200:])
    known(f'qpdf_{n}',open(f'{out}/rl_prose.known').read())
