# Hostile documents of all kinds, each read by a process of its own within 6 s and 300 MB.
# Usage: hostile.py make OUT; hostile.py pages OUT (sound files of many pages); hostile.py run OUT [name...]. RIFFLE_TEXT names the example `text`
# (cargo build --release -p riffle-documents --example text).
import glob,itertools,os,random,resource,signal,sys,tempfile,time,zlib
import hostile_archives as archives
R=random.Random(5)
z=zlib.compress
def pdf(objs,trailer=None):
    parts=[b'%PDF-1.7\n']; at=9; offs=[]
    for n,o in objs:
        offs.append((n,at)); s=b'%d 0 obj\n'%n+o+b'\nendobj\n'; parts.append(s); at+=len(s)
    parts.append(b'xref\n'); parts+=[b'%d 1\n%010d 00000 n \n'%(n,o) for n,o in offs]
    return b''.join(parts)+b'trailer\n'+(trailer or b'<</Size 100/Root 1 0 R>>')+b'\nstartxref\n%d\n%%%%EOF'%at
def stream(d,extra=b''): return b'<</Length %d%s>>\nstream\n'%(len(d),extra)+d+b'\nendstream'
CATALOG=(1,b'<</Type/Catalog/Pages 2 0 R>>'); PAGES=(2,b'<</Type/Pages/Kids[3 0 R]/Count 1>>')
FONT=(5,b'<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>')
H=b'BT /F1 12 Tf 72 700 Td (Hello) Tj ET '
def page(contents,extra=b'',fonts=b'<</F1 5 0 R>>',more=b''): return [(3,b'<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Resources<</Font'+fonts+extra+b'>>/Contents 4 0 R'+more+b'>>'),(4,contents)]
def base(contents=None,extra=b'',objs=(),more=b'',catalog=CATALOG): return pdf([catalog,PAGES,*page(contents or stream(H),extra,more=more),FONT,*objs])
def type0(cmap,more=b'',objs=()): return pdf([CATALOG,PAGES,*page(stream(b'BT /F1 12 Tf 72 700 Td <00410042> Tj ET')),(5,b'<</Type/Font/Subtype/Type0/BaseFont/X/Encoding/Identity-H/DescendantFonts[6 0 R]/ToUnicode 8 0 R>>'),(6,b'<</Type/Font/Subtype/CIDFontType2/BaseFont/X/CIDSystemInfo<</Registry(Adobe)/Ordering(Identity)/Supplement 0>>'+more+b'>>'),(8,cmap),*objs])
def lzw_run(n):
    # Codes of ever longer runs of one byte.
    width=9; out=[(256,9),(32,9)]; k=258; count=ln=1
    while count<n:
        out.append((k,width)); count+=ln+1; ln+=1; k+=1
        if k+1>=(1<<width) and width<12: width+=1
        if k>=4094: out+=[(256,width),(32,9)]; k=258; width=9; ln=1
    v=nb=0; res=bytearray()
    for c,w in out:
        v=(v<<w)|c; nb+=w
        while nb>=8: res.append((v>>(nb-8))&255); nb-=8; v&=(1<<nb)-1
    return bytes(res)
def bombs():
    flat=lambda n: z(b' '*n); lzw=lzw_run(300_000_000)
    filters={'flate':(flat(700_000_000),b'/FlateDecode'),'flate2':(z(flat(900_000_000)),b'[/FlateDecode/FlateDecode]'),'flate3':(z(z(flat(1_000_000_000))),b'[/FlateDecode/FlateDecode/FlateDecode]'),
        'lzw':(lzw,b'/LZWDecode'),'flate_lzw':(z(lzw),b'[/FlateDecode/LZWDecode]'),'run':(z(b'\x81 '*20_000_000),b'[/FlateDecode/RunLengthDecode]'),'flate_85':(z(b'z'*200_000_000),b'[/FlateDecode/ASCII85Decode]'),
        'hex':(z(b'20'*200_000_000),b'[/FlateDecode/ASCIIHexDecode]'),'same9':(flat(100_000),b'['+b'/FlateDecode'*9+b']')}
    for name,(data,filter) in filters.items():
        s=stream(data,b'/Filter'+filter)
        yield f'bomb_{name}_contents.pdf',base(s)
        yield f'bomb_{name}_cmap.pdf',type0(s)
        yield f'bomb_{name}_font.pdf',pdf([CATALOG,PAGES,*page(stream(H)),(5,b'<</Type/Font/Subtype/Type1/BaseFont/X/FontDescriptor 7 0 R>>'),(7,b'<</FontFile 8 0 R>>'),(8,s)])
        yield f'bomb_{name}_form.pdf',base(stream(H+b'/X Do'),b'/XObject<</X 9 0 R>>',[(9,s.replace(b'<<',b'<</Subtype/Form',1))])
        yield f'bomb_{name}_picture.pdf',base(stream(H+b'/X Do'),b'/XObject<</X 9 0 R>>',[(9,s.replace(b'<<',b'<</Subtype/Image/Width 9/Height 9',1))])
        yield f'bomb_{name}_objects.pdf',b'%PDF-1.7\n'+b'7 0 obj\n'+s.replace(b'<<',b'<</Type/ObjStm/N 9/First 9',1)+b'\nendobj\ntrailer<</Root 1 0 R>>'
    yield 'predictor.pdf',base(stream(z(b' '*30_000_000),b'/Filter/FlateDecode/DecodeParms<</Predictor 15/Columns 2147483647/Colors 99>>'))
    yield 'predictor_one.pdf',base(stream(z(b' '*60_000_000),b'/Filter/FlateDecode/DecodeParms<</Predictor 12/Columns 1>>'))
    yield 'bombs_many.pdf',pdf([CATALOG,PAGES,(3,b'<</Type/Page/Parent 2 0 R/Contents['+b''.join(b'%d 0 R '%i for i in range(10,300))+b']>>'),*[(i,stream(z(b' '*20_000_000),b'/Filter/FlateDecode')) for i in range(10,300)]])
def texts():
    f=lambda d: base(stream(z(H+d),b'/Filter/FlateDecode'))
    yield 'nested_q.pdf',f(b'q '*30_000_000)
    yield 'text_td.pdf',f(b'BT /F1 1 Tf '+b'1 1 Td (a) Tj '*4_000_000)
    yield 'text_same.pdf',f(b'BT /F1 9 Tf 9 9 Td '+b'(a) Tj 0 0 Td '*1_000_000)
    yield 'text_long.pdf',f(b'BT /F1 1 Tf '+(b'('+b'a'*1000+b') Tj ')*60_000)
    yield 'text_scatter.pdf',f(b'BT /F1 9 Tf '+b''.join(b'1 0 0 1 %d %d Tm (ab) Tj '%(R.randrange(600),R.randrange(800)) for _ in range(400_000)))
    yield 'text_turns.pdf',f(b'BT /F1 9 Tf '+b''.join(b'%f %f %f %f %d %d Tm (ab) Tj '%(R.uniform(-1,1),R.uniform(-1,1),R.uniform(-1,1),R.uniform(-1,1),R.randrange(600),R.randrange(800)) for _ in range(200_000)))
    yield 'text_one_line.pdf',f(b'BT /F1 1 Tf '+b''.join(b'1 0 0 1 %d 9 Tm (a) Tj '%(i*7%1_000_003) for i in range(450_000)))
    yield 'text_heights.pdf',f(b'BT '+b''.join(b'/F1 %f Tf 1 0 0 1 %d %d Tm (ab) Tj '%(R.uniform(0.01,300),R.randrange(600),R.randrange(800)) for _ in range(200_000)))
    yield 'text_cells.pdf',f(b'BT /F1 1 Tf '+b''.join(b'1 0 0 1 %d %d Tm (ab) Tj '%(x*9,y*3) for y in range(2900) for x in range(60)))
    yield 'text_columns.pdf',f(b'BT /F1 1 Tf '+b''.join(b'1 0 0 1 %d %f Tm (some words of a line) Tj '%(x*30,y*1.7+x*.3) for y in range(900) for x in range(30)))
    yield 'text_scripts.pdf',f(b'BT '+b''.join(b'/F1 %d Tf 1 0 0 1 %d %f Tm (a) Tj '%(9 if i%2 else 5,i%90*6,i//90*.5) for i in range(200_000)))
    yield 'text_rtl.pdf',pdf([CATALOG,PAGES,*page(stream(z(b'BT /F1 1 Tf '+b'<0041> Tj '*600_000),b'/Filter/FlateDecode')),(5,b'<</Type/Font/Subtype/Type0/BaseFont/X/Encoding/Identity-H/DescendantFonts[6 0 R]/ToUnicode 8 0 R>>'),(6,b'<</Type/Font/Subtype/CIDFontType2/BaseFont/X/DW 500>>'),(8,stream(b'1 beginbfchar <0041> <05D0> endbfchar'))])
    yield 'text_letters_long.pdf',type0(stream(b'1 beginbfchar <0041> <'+b'0042'*250+b'> endbfchar')).replace(b'<00410042> Tj',b'<0041> Tj '*1)
    yield 'text_word_letters.pdf',pdf([CATALOG,PAGES,*page(stream(z(b'BT /F1 1 Tf ('+b'A'*900_000+b') Tj'),b'/Filter/FlateDecode')),(5,b'<</Type/Font/Subtype/Type1/BaseFont/X/ToUnicode 8 0 R>>'),(8,stream(b'1 beginbfchar <41> <'+b'0042'*250+b'> endbfchar'))])
    yield 'grid_rules.pdf',f(b'BT /F1 1 Tf (a) Tj ET '+b'0 0 100 1 re f 0 0 1 100 re f '*2_000_000)
    yield 'grid_path.pdf',f(b'BT /F1 1 Tf (a) Tj ET '+b'0 0 m 100 0 l 0 100 l '*2_000_000+b'S')
    yield 'grid_letters.pdf',f(b''.join(b'0 %f 600 .1 re f %f 0 .1 800 re f '%(i/10,i/10) for i in range(8000))+b'BT /F1 .1 Tf '+b''.join(b'1 0 0 1 %f %f Tm (a) Tj '%(i*7919%6000/10,i*104729%8000/10) for i in range(300_000))+b'ET')
    yield 'grid_open.pdf',f(b''.join(b'0 %f 600 .1 re f 9999 %f .1 8 re f '%(i,i) for i in range(8000))+b'BT /F1 9 Tf '+b'1 0 0 1 9 9 Tm (a) Tj 1 0 0 1 5000 9 Tm (b) Tj '*200_000+b'ET')
    yield 'text_actual.pdf',f((b'/Span<</ActualText('+b'x'*5000+b')>>BDC (a) Tj EMC ')*40_000)
    yield 'text_marks.pdf',f(b'/a BMC '*4_000_000)
    yield 'text_numbers.pdf',f(b'BT /F1 1e300 Tf 1e308 0 0 1e308 1e308 1e308 Tm (ab) Tj /F1 0 Tf (ab) Tj -1e308 TL T* (c) Tj NaN 0 0 inf 0 0 cm (d) Tj 99999999999999999999999999 0 Td (e) Tj ET')
    yield 'text_inline.pdf',f(b'BI /W 9 ID EI '*1_000_000)
    yield 'text_inline_open.pdf',f(b'BI ID '+b'EI'*4_000_000)
    yield 'text_operands.pdf',f(b'1 '*20_000_000)
    yield 'text_tj.pdf',f(b'BT [' + b'(a) -9 '*2_000_000+b'] TJ ET')
    yield 'text_fonts.pdf',f(b'BT '+b''.join(b'/F%d 9 Tf (a) Tj '%i for i in range(500_000)))
    yield 'text_accents.pdf',f(b'BT /F1 9 Tf '+b'(\\250) Tj -2 0 Td (e) Tj '*300_000)
def trees():
    for o,n in ((b'[','arr'),(b'<<','dict'),(b'(','par'),(b'<</a ','key'),(b'<','hex'),(b'{','brace')):
        yield f'deep_{n}.pdf',base(stream(H+o*3_000_000))
        yield f'deep_{n}_object.pdf',base(None,b'/X 9 0 R/XObject 9 0 R',[(9,o*1_000_000)])
        yield f'deep_{n}_cmap.pdf',type0(stream(b'1 beginbfchar '+o*2_000_000))
        yield f'deep_{n}_trailer.pdf',b'%PDF-1.7\ntrailer '+o*2_000_000
    draw=lambda body,objs: base(stream(H+body),b'/XObject<</X 9 0 R/Y 10 0 R>>',objs)
    form=lambda d,r=b'/Resources<</XObject<</X 9 0 R/Y 10 0 R>>>>': stream(d,b'/Subtype/Form/BBox[0 0 9 9]'+r)
    yield 'form_self.pdf',draw(b'/X Do',[(9,form(b'/X Do'))])
    yield 'form_pair.pdf',draw(b'/X Do',[(9,form(b'/Y Do /Y Do')),(10,form(b'/X Do /X Do'))])
    yield 'form_laughs.pdf',base(stream(H+b'/X Do'),b'/XObject<</X 20 0 R>>',[(20+i,stream(b'/X Do '*10,b'/Subtype/Form/Resources<</XObject<</X %d 0 R>>>>'%(21+i))) for i in range(23)])
    yield 'form_many.pdf',draw(b'/X Do '*3_000_000,[(9,form(H))])
    yield 'form_no_resources.pdf',draw(b'/X Do',[(9,form(b'/X Do',b''))])
    yield 'pages_self.pdf',pdf([CATALOG,(2,b'<</Type/Pages/Kids[2 0 R 2 0 R 3 0 R]/Count 3>>'),*page(stream(H)),FONT])
    yield 'pages_same.pdf',pdf([CATALOG,(2,b'<</Type/Pages/Kids['+b'3 0 R '*900_000+b']/Count 3>>'),*page(stream(H)),FONT])
    yield 'pages_inline.pdf',pdf([CATALOG,(2,b'<</Type/Pages/Kids['+b'<</Type/Page>> '*300_000+b']/Count 3>>'),*page(stream(H)),FONT])
    yield 'pages_deep.pdf',pdf([CATALOG,*[(i,b'<</Type/Pages/Kids[%d 0 R]>>'%(i+1)) for i in [2]+list(range(10,90_000))],(90_000,b'<</Type/Page>>')])
    yield 'pages_count.pdf',pdf([CATALOG,(2,b'<</Type/Pages/Kids[3 0 R]/Count 999999999999>>'),*page(stream(H)),FONT])
    yield 'pages_inherit.pdf',pdf([CATALOG,(2,b'<</Type/Pages/Parent 2 0 R/Kids[3 0 R]>>'),(3,b'<</Type/Page/Parent 3 0 R/Contents 4 0 R>>'),(4,stream(H))])
    yield 'pages_box.pdf',pdf([CATALOG,PAGES,(3,b'<</Type/Page/MediaBox[1e308 -1e308 -1e308 1e308]/Rotate 1e300/Resources<</Font<</F1 5 0 R>>>>/Contents 4 0 R>>'),(4,stream(H)),FONT])
    yield 'contents_many.pdf',pdf([CATALOG,PAGES,(3,b'<</Type/Page/Parent 2 0 R/Resources<</Font<</F1 5 0 R>>>>/Contents['+b'4 0 R '*300_000+b']>>'),(4,stream(H*100)),FONT])
    yield 'contents_pages.pdf',pdf([CATALOG,(2,b'<</Type/Pages/Kids['+b''.join(b'<</Type/Page/Contents 4 0 R/Resources 6 0 R>>' for _ in range(3000))+b']>>'),(4,stream(H*2000)),(6,b'<</Font<</F1 5 0 R>>>>'),FONT])
    yield 'length_loop.pdf',pdf([CATALOG,PAGES,*page(b'<</Length 4 0 R>>\nstream\n'+H+b'\nendstream'),FONT])
    yield 'length_lie.pdf',pdf([CATALOG,PAGES,*page(b'<</Length 99999999999999>>\nstream\n'+H+b'\nendstream'),FONT])
    outline=(1,b'<</Type/Catalog/Pages 2 0 R/Outlines 9 0 R/PageLabels 9 0 R/Names<</Dests 9 0 R>>/AcroForm<</Fields[9 0 R]>>>>')
    yield 'outline_loop.pdf',base(None,b'',[(9,b'<</First 10 0 R/Kids[9 0 R 10 0 R]/Parent 9 0 R>>'),(10,b'<</Title(a)/Next 10 0 R/First 10 0 R/Kids[9 0 R]/Dest[3 0 R/Fit]>>')],catalog=outline)
    yield 'outline_many.pdf',base(None,b'',[(9,b'<</First 10 0 R>>'),*[(i,b'<</Title(a)/Next %d 0 R/Dest[3 0 R/Fit]>>'%(i+1)) for i in range(10,120_000)]],catalog=outline)
    yield 'outline_title.pdf',base(None,b'',[(9,b'<</First 10 0 R>>'),(10,b'<</Title('+b'a'*20_000_000+b')/Dest[3 0 R/Fit]>>')],catalog=outline)
    yield 'labels_many.pdf',base(None,b'',[(9,b'<</Nums['+b'0 <</P(aaaaaaaaaaaaaaaaaaaaaaa)/S/r/St 999999999>>'*60_000+b']>>')],catalog=outline)
    yield 'names_many.pdf',base(None,b'',[(9,b'<</Names['+b'(a) [3 0 R/Fit] '*200_000+b']/First 10 0 R>>')],catalog=outline)
    yield 'fields_loop.pdf',base(None,more=b'/Annots[10 0 R 10 0 R]',objs=[(10,b'<</Subtype/Widget/Rect[0 0 9 9]/Parent 10 0 R>>')])
    yield 'annots_many.pdf',base(None,more=b'/Annots['+b'10 0 R '*500_000+b']',objs=[(10,b'<</Subtype/FreeText/Rect[0 0 9 9]/Contents('+b'x'*1000+b')>>')])
    yield 'annots_forms.pdf',base(None,more=b'/Annots['+b'10 0 R '*9_000+b']',objs=[(10,b'<</Subtype/Stamp/Rect[0 0 9 9]/AP<</N 11 0 R>>>>'),(11,form(H*300,b'/Resources<</Font<</F1 5 0 R>>>>'))])
    yield 'annots_value.pdf',base(None,more=b'/Annots[10 0 R]',objs=[(10,b'<</Subtype/Widget/Rect[0 0 1e308 -1e308]/V('+b'x\n'*2_000_000+b')>>')])
    yield 'references.pdf',base(None,b'/X 10 0 R',[(i,b'%d 0 R'%(i+1)) for i in range(10,90)]+[(90,b'10 0 R')])
    yield 'fonts_self.pdf',pdf([CATALOG,PAGES,*page(stream(H)),(5,b'<</Type/Font/Subtype/Type0/DescendantFonts[5 0 R]/Encoding 5 0 R/ToUnicode 5 0 R/FontDescriptor 5 0 R/FontFile 5 0 R/Widths 5 0 R>>')])
    yield 'fonts_many.pdf',pdf([CATALOG,(2,b'<</Type/Pages/Kids['+b'<</Type/Page/Contents 4 0 R/Resources<</Font<</F1<</Subtype/Type1/BaseFont/X/FontDescriptor 7 0 R>>>>>>>>'*3000+b']>>'),(4,stream(H)),(7,b'<</FontFile3 8 0 R>>'),(8,stream(b'\1\0\4\1'+R.randbytes(300_000)))])
    yield 'differences.pdf',pdf([CATALOG,PAGES,*page(stream(H)),(5,b'<</Type/Font/Subtype/Type1/Encoding<</Differences['+b'/a '*900_000+b']>>/Widths['+b'1 '*900_000+b']/FirstChar -99999999999>>')])
    yield 'widths.pdf',type0(stream(b'1 beginbfchar <0041> <0042> endbfchar'),b'/W['+b'0 4294967295 1 '*300_000+b']')
    yield 'glyph_map.pdf',type0(stream(b''),b'/CIDToGIDMap 9 0 R',[(9,stream(z(b'\0\1'*30_000_000),b'/Filter/FlateDecode'))])
    yield 'truetype.pdf',type0(stream(b''),b'/FontDescriptor<</FontFile2 9 0 R>>',[(9,stream(b'\0\1\0\0\0\3'+b'\0'*6+b'cmap\0\0\0\0\0\0\0\x3c\0\0\xff\xffhead\0\0\0\0\0\0\0\x3c\0\0\xff\xffmaxp\0\0\0\0\0\0\0\x3c\0\0\xff\xff'+R.randbytes(200_000)))])
def syntax():
    yield 'cmap_range.pdf',type0(stream(b'1 beginbfrange <00000000> <FFFFFFFF> <0041> endbfrange 1 begincidrange <00000000> <FFFFFFFF> 0 endcidrange'))
    yield 'cmap_array.pdf',type0(stream(b'1 beginbfrange <0000> <FFFFFFFF> ['+b'<0041> '*900_000+b'] endbfrange'))
    yield 'cmap_spaces.pdf',type0(stream(b'1 begincodespacerange '+b'<00> <ff> '*900_000+b'endcodespacerange'))
    yield 'cmap_long.pdf',type0(stream(z(b'100 beginbfchar <0041> <'+b'0042'*10_000_000+b'> endbfchar'),b'/Filter/FlateDecode'))
    yield 'cmap_many.pdf',type0(stream(z(b'1 beginbfchar '+b'<0041> <0042> '*3_000_000+b' endbfchar'),b'/Filter/FlateDecode'))
    yield 'cmap_use_self.pdf',type0(stream(b'/X usecmap 1 beginbfchar <0041> <0042> endbfchar',b'/UseCMap 8 0 R'))
    tail=lambda n: b'\nstartxref\n%d\n%%%%EOF'%n
    yield 'xref_zero.pdf',b'%PDF-1.7\n'+(s:=b'7 0 obj\n'+stream(b'',b'/Type/XRef/Size 4294967295/W[0 0 0]/Root 1 0 R')+b'\nendobj')+tail(9)
    yield 'xref_wide.pdf',b'%PDF-1.7\n7 0 obj\n'+stream(b'a'*100_000,b'/Type/XRef/Size 9/W[99999999999 9999999999 1]/Root 1 0 R')+b'\nendobj'+tail(9)
    yield 'xref_index.pdf',b'%PDF-1.7\n7 0 obj\n'+stream(z(b'\1'*60_000_000),b'/Type/XRef/Filter/FlateDecode/Index['+b'0 4294967295 '*1000+b']/W[1 1 1]/Root 1 0 R')+b'\nendobj'+tail(9)
    yield 'xref_table.pdf',b'%PDF-1.7\nxref\n0 99999999999\n'+b'0000000009 00000 n \n'*700_000+b'trailer<</Root 1 0 R/Prev 9>>'+tail(9)
    yield 'xref_prev.pdf',b'%PDF-1.7\n'+b''.join(b'xref\n0 0\ntrailer<</Root 1 0 R/Prev %07d/XRefStm %07d>>\n'%(9+56*(i+1),9+56*(i*7%9000)) for i in range(20_000))+tail(9)
    yield 'trailers.pdf',b'%PDF-1.7\n'+b'trailer<</A 1 '*2_000_000
    yield 'xrefs.pdf',b'%PDF-1.7\n'+b'1 0 obj<</Type/XRef/A 1 '*1_000_000
    yield 'objects.pdf',b'%PDF-1.7\n'+b''.join(b'%d 0 obj<</Type/Catalog/Pages 2 0 R>>\n'%i for i in range(1_000_000))
    yield 'object_streams.pdf',b'%PDF-1.7\n'+b''.join(b'%d 0 obj<</Type/ObjStm/N 5/First 9/Length 40>>\nstream\n1 0 2 0 3 0 \nendstream\n'%i for i in range(300_000))
    yield 'object_stream_lie.pdf',b'%PDF-1.7\n7 0 obj\n'+stream(b'1 999999999999 2 0 ',b'/Type/ObjStm/N 99999999999/First 99999999999')+b'\nendobj\ntrailer<</Root 1 0 R>>'
    yield 'object_stream_many.pdf',b'%PDF-1.7\n7 0 obj\n'+stream(z(b'1 0 '*9_000_000),b'/Type/ObjStm/N 9000000/First 36000000/Filter/FlateDecode')+b'\nendobj\ntrailer<</Root 1 0 R>>'
    yield 'obj_words.pdf',b'%PDF-1.7\n'+b'obj'*10_000_000
    yield 'endstreams.pdf',b'%PDF-1.7\n'+b'1 0 obj<<>>stream endstream '*900_000
    yield 'names_escaped.pdf',base(stream(H),b'/X '+b'/#41'*2_000_000)
    yield 'numbers.pdf',base(stream(H+b'9'*5_000_000+b' '+b'-'*3_000_000+b'.'*3_000_000))
    yield 'comments.pdf',b'%PDF-1.7\n'+b'%\n'*8_000_000
    for v,r,l in ((1,2,40),(2,3,128),(4,4,128),(5,6,256),(9,9,9999),(4,4,-1)):
        yield f'encrypt_v{v}r{r}.pdf',pdf([CATALOG,PAGES,*page(stream(H)),FONT,(9,b'<</Filter/Standard/V %d/R %d/Length %d/O(x)/U(y)/P -1/OE(z)/UE()/CF<</StdCF<</CFM/AESV3/Length 99999>>>>/StmF/StdCF/StrF/StdCF>>'%(v,r,l))],b'<</Root 1 0 R/Encrypt 9 0 R/ID[(a)(b)]>>')
    yield 'encrypt_self.pdf',pdf([CATALOG,PAGES,*page(stream(H)),FONT,(9,b'9 0 R')],b'<</Root 1 0 R/Encrypt 9 0 R>>')
def damaged():
    # Sound files with bytes changed, cut and doubled.
    here=os.path.dirname(os.path.abspath(__file__)); sound=sorted(glob.glob(here+'/../../../crates/documents/tests/fixtures/*.pdf'))
    for at in range(24):
        data=bytearray(open(sound[at%len(sound)],'rb').read())
        for _ in range(1+at*3): data[R.randrange(len(data))]=R.randrange(256)
        if at%3==1: data=data[:R.randrange(len(data))]
        if at%3==2: k=R.randrange(len(data)); data=data[:k]+data[k//2:]
        yield f'damaged_{at}.pdf',bytes(data)
def all_documents(): return itertools.chain(bombs(),texts(),trees(),syntax(),damaged(),archives.web(),archives.word(),archives.books(),archives.texts())
def make(out):
    os.makedirs(out,exist_ok=True); count=0
    for name,data in all_documents():
        with open(os.path.join(out,name),'wb') as f: f.write(data)
        count+=1
    print(count,'files')
def pages(out):
    os.makedirs(out,exist_ok=True)
    for n in (2_000,20_000):
        objs=[CATALOG,(2,b'<</Type/Pages/Kids['+b' '.join(b'%d 0 R'%(10+2*i) for i in range(n))+b']/Count %d>>'%n),FONT]
        for i in range(n):
            lines=b' '.join(b'(Line %d of page %d with some words to read) Tj T*'%(k,i) for k in range(30))
            objs+=[(10+2*i,b'<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Resources<</Font<</F1 5 0 R>>>>/Contents %d 0 R>>'%(11+2*i)),(11+2*i,stream(b'BT /F1 12 Tf 14 TL 72 700 Td '+lines+b' ET'))]
        open(f'{out}/pages_{n}.pdf','wb').write(pdf(objs))
def measure(file):
    # Seconds of the processor, megabytes and the end of a process that reads one file.
    program=os.environ.get('RIFFLE_TEXT','target/release/examples/text'); said=tempfile.TemporaryFile('w+',errors='replace'); start=time.time(); pid=os.fork()
    if pid==0:
        os.dup2(os.open(os.devnull,os.O_WRONLY),1); os.dup2(said.fileno(),2)
        resource.setrlimit(resource.RLIMIT_CPU,(60,60)); os.execv(program,[program,file])
    _,status,usage=os.wait4(pid,0); wall=time.time()-start; said.seek(0); said=said.read().strip().split('\n')[-1]
    return usage.ru_utime+usage.ru_stime,wall,usage.ru_maxrss/1024,status,said.replace(os.path.dirname(file)+'/','')
def run(out,names):
    files=sorted(glob.glob(out+'/*')); files=[f for f in files if not names or os.path.basename(f) in names]; ended=[]; slow=[]; large=[]; worst=[0,0]
    for file in files:
        cpu,wall,megabytes,status,said=measure(file); name=os.path.basename(file); worst=[max(worst[0],cpu),max(worst[1],megabytes)]; mark=''
        if status: ended.append(name); mark+=f' ENDED {status}'
        if cpu>6: slow.append(name); mark+=' SLOW'
        if megabytes>300: large.append(name); mark+=' LARGE'
        print('%-32s %6.2f s cpu %6.2f s %6.0f MB%s  %s'%(name,cpu,wall,megabytes,mark,said[:140]),flush=True)
    print(f'{len(files)} files: {len(ended)} ended {ended}, {len(slow)} over 6 s {slow}, {len(large)} over 300 MB {large}; most {worst[0]:.2f} s, {worst[1]:.0f} MB')
if __name__=='__main__':
    if sys.argv[1]=='make': make(sys.argv[2])
    elif sys.argv[1]=='pages': pages(sys.argv[2])
    else: run(sys.argv[2],sys.argv[3:])
