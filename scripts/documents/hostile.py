# Hostile PDFs. Usage: hostile.py OUT
import sys,os,zlib
out=sys.argv[1]; os.makedirs(out,exist_ok=True)
def pdf(name,objs,trailer=None):
    parts=[b'%PDF-1.7\n']; at=9; offs=[]
    for n,o in objs:
        offs.append((n,at)); s=b'%d 0 obj\n'%n+o+b'\nendobj\n'; parts.append(s); at+=len(s)
    x=at; parts.append(b'xref\n')
    parts+=[b'%d 1\n%010d 00000 n \n'%(n,o) for n,o in offs]
    b=b''.join(parts)+b'trailer\n'+(trailer or b'<</Size 100/Root 1 0 R>>')+b'\nstartxref\n%d\n%%%%EOF'%x
    open(f'{out}/{name}.pdf','wb').write(b)
def stream(d,extra=b''): return b'<</Length %d%s>>\nstream\n'%(len(d),extra)+d+b'\nendstream'
cat=(1,b'<</Type/Catalog/Pages 2 0 R>>'); pages=(2,b'<</Type/Pages/Kids[3 0 R]/Count 1>>')
font=(5,b'<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>')
def page(c,extra=b'',f=b'<</F1 5 0 R>>'): return [(3,b'<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Resources<</Font'+f+extra+b'>>/Contents 4 0 R>>'),(4,c)]
base=lambda c,extra=b'',more=[]: [cat,pages]+page(c,extra)+[font]+more
z=zlib.compress
H=b'BT /F1 12 Tf 72 700 Td (Hello) Tj ET '
pdf('nested_q',base(stream(z(H+b'q '*30_000_000),b'/Filter/FlateDecode')))
pdf('flate_text',base(stream(z(H+b'BT /F1 1 Tf '+b'1 1 Td (a) Tj '*4_000_000),b'/Filter/FlateDecode')))
pdf('flate_text60',base(stream(z(H+b'BT /F1 1 Tf '+(b'('+b'a'*1000+b') Tj ')*60_000),b'/Filter/FlateDecode')))
pdf('flate_bomb',base(stream(z(b' '*600_000_000),b'/Filter/FlateDecode')))
pdf('flate_flate',base(stream(z(z(b' '*900_000_000)),b'/Filter[/FlateDecode/FlateDecode]')))
pdf('rl_bomb',base(stream(z(b'\x81 '*20_000_000),b'/Filter[/FlateDecode/RunLengthDecode]')))
# lzw: all codes 9-bit same letter then clear... a valid long run
def lzw_run(n):
    bits=[];code=258;width=9;out=[(256,9),(32,9)];k=258
    count=1;ln=1
    while count<n:
        out.append((k,width)); count+=ln+1; ln+=1; k+=1
        if k+1>=(1<<width) and width<12: width+=1
        if k>=4094: out.append((256,width)); out.append((32,9)); k=258; width=9; ln=1
    v=0;nb=0;res=bytearray()
    for c,w in out:
        v=(v<<w)|c; nb+=w
        while nb>=8: res.append((v>>(nb-8))&255); nb-=8
        v&=(1<<nb)-1
    if nb: res.append((v<<(8-nb))&255)
    return bytes(res)
pdf('lzw_bomb',base(stream(z(lzw_run(400_000_000)),b'/Filter[/FlateDecode/LZWDecode]')))
for o in [b'[',b'<<',b'(',b'<</a ']: 
    n={b'[':'arr',b'<<':'dict',b'(':'par',b'<</a ':'dictk'}[o]
    pdf(f'deep_{n}',base(stream(H+o*3_000_000)))
    pdf(f'deepobj_{n}',base(stream(H),b'/X 9 0 R/XObject 9 0 R',[(9,o*1_000_000)]))
def t0(cmap): return [(5,b'<</Type/Font/Subtype/Type0/BaseFont/X/Encoding/Identity-H/DescendantFonts[6 0 R]/ToUnicode 8 0 R>>'),(6,b'<</Type/Font/Subtype/CIDFontType2/BaseFont/X/CIDSystemInfo<</Registry(Adobe)/Ordering(Identity)/Supplement 0>>>>'),(8,cmap)]
P=[cat,pages]+page(stream(b'BT /F1 12 Tf 72 700 Td <00410042> Tj ET'))
pdf('cmap_deep',P+t0(stream(b'1 beginbfchar '+b'('*2_000_000)))
pdf('cmap_deep4',P+t0(stream(b'1 beginbfchar '+b'['*2_000_000)))
pdf('cmap_long',P+t0(stream(z(b'100 beginbfchar '+b'<0041> <'+b'0042'*10_000_000+b'> endbfchar'),b'/Filter/FlateDecode')))
pdf('cmap_many',P+t0(stream(z(b'1 beginbfchar '+b'<0041> <0042> '*3_000_000+b' endbfchar'),b'/Filter/FlateDecode')))
pdf('fontfile',[cat,pages]+page(stream(H))+[(5,b'<</Type/Font/Subtype/Type1/BaseFont/X/FontDescriptor 7 0 R>>'),(7,b'<</FontFile 8 0 R>>'),(8,stream(b'/Encoding '+b'{'*1_000_000))])
pdf('kids_self',[cat,(2,b'<</Type/Pages/Kids[2 0 R 2 0 R 3 0 R]/Count 3>>')]+page(stream(H))+[font])
pdf('kids_many',[cat,(2,b'<</Type/Pages/Kids['+b'3 0 R '*900_000+b']/Count 3>>')]+page(stream(H))+[font])
pdf('kids_inline',[cat,(2,b'<</Type/Pages/Kids['+b'<</Type/Page>> '*300_000+b']/Count 3>>')]+page(stream(H))+[font])
pdf('contents_many',[cat,pages,(3,b'<</Type/Page/Parent 2 0 R/Resources<</Font<</F1 5 0 R>>>>/Contents['+b'4 0 R '*300_000+b']>>'),(4,stream(H*100)),font])
pdf('length_loop',[cat,pages]+page(b'<</Length 4 0 R>>\nstream\n'+H+b'\nendstream')+[font])
pdf('outline_loop',[(1,b'<</Type/Catalog/Pages 2 0 R/Outlines 9 0 R>>'),pages]+page(stream(H))+[font,(9,b'<</First 10 0 R>>'),(10,b'<</Title(a)/Next 10 0 R/First 10 0 R/Dest[3 0 R/Fit]>>')])
pdf('field_loop',[cat,pages,(3,b'<</Type/Page/Parent 2 0 R/Resources<</Font<</F1 5 0 R>>>>/Contents 4 0 R/Annots[10 0 R]>>'),(4,stream(H)),font,(10,b'<</Subtype/Widget/Rect[0 0 9 9]/Parent 10 0 R>>')])
open(f'{out}/trailers.pdf','wb').write(b'%PDF-1.7\n'+b'trailer<</A 1 '*2_000_000)
open(f'{out}/xrefs.pdf','wb').write(b'%PDF-1.7\n'+b'1 0 obj<</Type/XRef/A 1 '*1_000_000)
open(f'{out}/objs.pdf','wb').write(b'%PDF-1.7\n'+b''.join(b'%d 0 obj<</Type/Catalog/Pages 2 0 R>>\n'%i for i in range(1_000_000)))
open(f'{out}/objstms.pdf','wb').write(b'%PDF-1.7\n'+b''.join(b'%d 0 obj<</Type/ObjStm/N 5/First 9/Length 40>>\nstream\n1 0 2 0 3 0 \nendstream\n'%i for i in range(300_000)))
for name,d in [('skip_quad',b'<svg>'*300_000+b'</math>'*300_000),('pre_quad',b'<pre>'+b'<p>\n'*600_000),('attrs',b'<p '+b' '.join(b'a%d=1'%i for i in range(200_000))+b'>x')]:
    open(f'{out}/{name}.html','wb').write(b'<p>kept</p>'+d)
for n in (2000,20000):
    objs=[(1,b'<</Type/Catalog/Pages 2 0 R>>'),(2,b'<</Type/Pages/Kids['+b' '.join(b'%d 0 R'%(10+2*i) for i in range(n))+b']/Count %d>>'%n),font]
    for i in range(n):
        lines=b' '.join(b'(Line %d of page %d with some words to read) Tj T*'%(k,i) for k in range(30))
        objs+= [(10+2*i,b'<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Resources<</Font<</F1 5 0 R>>>>/Contents %d 0 R>>'%(11+2*i)),(11+2*i,stream(b'BT /F1 12 Tf 14 TL 72 700 Td '+lines+b' ET'))]
    pdf(f'pages_{n}',objs)
