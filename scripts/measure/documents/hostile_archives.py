# Hostile DOCX and EPUB files, web pages and texts, for hostile.py.
import io,os,random,struct,zipfile,zlib
R=random.Random(11)
def zipped(parts,method=zipfile.ZIP_DEFLATED):
    b=io.BytesIO()
    with zipfile.ZipFile(b,'w',method) as z:
        for name,data in parts: z.writestr(name,data)
    return b.getvalue()
W=b'<?xml version="1.0"?><w:document xmlns:w="w" xmlns:m="m"><w:body>'; E=b'</w:body></w:document>'
KEPT=b'<w:p><w:r><w:t>kept</w:t></w:r></w:p>'
def docx(body,more=(),whole=False): return zipped([('word/document.xml',body if whole else W+KEPT+body+E),*more])
CONTAINER=b'<container><rootfiles><rootfile full-path="c.opf"/></rootfiles></container>'
def epub(chapters,opf=None,more=()):
    if opf is None:
        opf=b'<package><manifest>'+b''.join(b'<item id="%d" href="%d.xhtml" media-type="application/xhtml+xml"/>'%(i,i) for i in range(len(chapters)))+b'</manifest><spine>'+b''.join(b'<itemref idref="%d"/>'%i for i in range(len(chapters)))+b'</spine></package>'
    return zipped([('mimetype',b'application/epub+zip'),('META-INF/container.xml',CONTAINER),('c.opf',opf),*((f'{i}.xhtml',c) for i,c in enumerate(chapters)),*more])
def rels(*targets): return ('word/_rels/document.xml.rels',b'<Relationships>'+b''.join(b'<Relationship Id="r%d" Type="x/%s" Target="%s"/>'%(i,k,t) for i,(k,t) in enumerate(targets))+b'</Relationships>')
def entities(n=40): return b'<!DOCTYPE x [<!ENTITY e0 "ha">'+b''.join(b'<!ENTITY e%d "%s">'%(i,b'&e%d;'%(i-1)*10) for i in range(1,n))+b']>'
def deep(name,n=300_000,inner=b''): return b'<%s>'%name*n+inner+b'</%s>'%name*n

def web():
    for n in (b'div',b'p',b'b',b'a',b'ul',b'li',b'table',b'td',b'pre',b'svg',b'math',b'select',b'h1',b'ruby',b'template',b'span',b'form',b'object'):
        yield f'deep_{n.decode()}.html',b'<p>kept</p>'+b'<%s>'%n*400_000
        if n in (b'div',b'p',b'b',b'a',b'table',b'svg',b'math',b'template'): yield f'closed_{n.decode()}.html',b'<p>kept</p>'+deep(n,300_000)
    pairs=[(b'<b><p>',b''),(b'<a><div>',b''),(b'<b id=%d>',b'x'),(b'<table>x',b''),(b'<table><tr><td>',b''),(b'</p>',b''),(b'</br>',b''),(b'<p>x',b''),(b'<svg><foreignObject>',b''),(b'<math><annotation-xml encoding=text/html>',b''),(b'<i><table><b>',b'</i>'),(b'<nobr>',b''),(b'<button>',b''),(b'<frameset>',b''),(b'<svg></math>',b''),(b'<li value=99999999999999999999>',b'x'),(b'<x-%d>',b''),(b'<img alt=a>',b''),(b'<td>x',b'<tr>')]
    for k,(a,b) in enumerate(pairs):
        unit=(lambda i: (a%i if b'%d' in a else a)+b); yield f'many_{k}.html',b'<p>kept</p>'+b''.join(unit(i) for i in range(500_000))
    yield 'attrs.html',b'<p>kept</p><p '+b' '.join(b'a%d=1'%i for i in range(300_000))+b'>x'
    yield 'attr_long.html',b'<p>kept</p><p title="'+b'a'*30_000_000+b'">x'
    yield 'less.html',b'<p>kept</p>'+b'<'*8_000_000
    yield 'amp.html',b'<p>kept</p>'+b'&'*8_000_000
    yield 'amp_names.html',b'<p>kept</p>'+b'&notin'*2_000_000
    yield 'comment.html',b'<p>kept</p>'+b'<!--'*4_000_000
    yield 'cdata.html',b'<p>kept</p><svg>'+b'<![CDATA['*2_000_000
    yield 'zeros.html',b'<p>kept</p>'+b'\0'*200
    yield 'script_open.html',b'<p>kept</p><script>'+b'</scrip'*2_000_000
    yield 'plaintext.html',b'<p>kept</p><plaintext>'+b'<a>'*4_000_000
    s=b'<p>in'
    for _ in range(12): s=b'<iframe srcdoc="'+s.replace(b'&',b'&amp;').replace(b'"',b'&quot;')+b'"></iframe>'
    yield 'srcdoc.html',b'<p>kept</p>'+s
    yield 'srcdocs.html',b'<p>kept</p>'+b'<iframe srcdoc="<p>a<iframe srcdoc=b></iframe>"></iframe>'*100_000
    yield 'long_word.html',b'<p>kept</p>'+b'a'*60_000_000
    yield 'utf16_odd.html','<p>kept</p>'.encode('utf-16')+b'\xd8'
    yield 'lists.html',b'<ol type=i start=99999999999>'+b'<li>x<ol type=A reversed start=-99>'*200_000
    yield 'math_deep.html',b'<p>kept</p><math>'+b'<mfrac><mi>a</mi>'*200_000
    yield 'math_wide.html',b'<p>kept</p><math>'+b'<msup><mi>a</mi><mn>2</mn></msup>'*300_000

def word():
    for n in (b'w:tbl',b'w:p',b'w:t',b'mc:Fallback',b'w:txbxContent',b'w:sdt',b'm:oMath',b'm:f',b'w:del',b'w:ruby',b'w:comment',b'mc:AlternateContent'): yield f'deep_{n.decode().replace(":","_")}.docx',docx(deep(n,400_000))
    yield 'math_deep.docx',docx(b'<m:oMath>'+deep(b'm:f',200_000,b'<m:t>x</m:t>')+b'</m:oMath>')
    yield 'math_num.docx',docx(b'<m:oMath>'+b'<m:f><m:num>'*100_000+b'<m:t>x</m:t>'+b'</m:num></m:f>'*100_000+b'</m:oMath>')
    yield 'bomb_main.docx',docx(b'<w:p><w:t>'+b'a'*700_000_000+b'</w:t></w:p>')
    yield 'bomb_tags.docx',docx(b'<w:p/>'*30_000_000)
    yield 'bomb_rels.docx',docx(b'',[('word/_rels/document.xml.rels',b'<Relationships>'+b'<Relationship Id="a" Type="b" Target="c"/>'*6_000_000)])
    for part in ('styles','numbering','footnotes','comments'): yield f'bomb_{part}.docx',docx(b'',[(f'word/{part}.xml',b'<w:x>'+b'<w:style w:styleId="a"><w:name w:val="heading 1"/></w:style><w:abstractNum w:abstractNumId="1"><w:lvl w:ilvl="0"/></w:abstractNum><w:p><w:t>x</w:t></w:p>'*1_800_000)])
    yield 'entities.docx',docx(b'<?xml version="1.0"?>'+entities()+W+b'<w:p><w:t>kept&e39;</w:t></w:p>'+E,whole=True)
    yield 'entity_long.docx',docx(b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "'+b'a'*100_000+b'">]>'+W+b'<w:p><w:t>kept'+b'&a;'*100_000+b'</w:t></w:p>'+E,whole=True)
    yield 'external.docx',docx(b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>'+W+b'<w:p><w:t>kept&a;</w:t></w:p>'+E,whole=True)
    yield 'rel_self.docx',docx(b'',[rels((b'footnotes',b'document.xml'),(b'comments',b'document.xml'),(b'header',b'document.xml'))])
    yield 'rel_many.docx',docx(b'',[rels(*[(b'header',b'document.xml')]*20_000)])
    yield 'rel_diagrams.docx',docx(b'x'*2_000_000,[rels(*[(b'diagramData',b'document.xml')]*2_000)])
    yield 'numbers.docx',docx(b'<w:p><w:pPr><w:numPr><w:ilvl w:val="8"/><w:numId w:val="1"/></w:numPr></w:pPr><w:r><w:t>x</w:t></w:r></w:p>'*100_000,[('word/numbering.xml',b'<w:numbering><w:abstractNum w:abstractNumId="1">'+b''.join(b'<w:lvl w:ilvl="%d"><w:start w:val="99999999"/><w:numFmt w:val="lowerLetter"/><w:lvlText w:val="%s"/></w:lvl>'%(i,b'%1%2%3%4%5%6%7%8%9'*2000) for i in range(9))+b'</w:abstractNum><w:num w:numId="1"><w:abstractNumId w:val="1"/></w:num></w:numbering>')])
    yield 'boxes.docx',docx(b'<w:txbxContent><w:p><w:t>x</w:t></w:p></w:txbxContent>'*500_000)
    yield 'headings.docx',docx(b'<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:t>a</w:t></w:r></w:p>'*900_000)
    yield 'cells.docx',docx(b'<w:tbl><w:tr>'+b'<w:tc><w:p><w:t>x</w:t></w:p></w:tc>'*900_000)
    yield 'symbols.docx',docx(b'<w:sym w:font="X" w:char="F0FF"/>'*2_000_000)
    yield 'chunks.docx',docx(b'<w:altChunk r:id="r0"/>'*50_000,[rels((b'aFChunk',b'a.html')),('word/a.html',b'<p>x'*1000)])
    yield 'attributes.docx',docx(b'<w:p '+b' '.join(b'a%d="1"'%i for i in range(500_000))+b'/>')
    yield 'cut.docx',docx(b'')[:-40]
    yield 'cut_xml.docx',docx(W+KEPT+b'<w:p><w:r><w:t>half',whole=True)
    yield 'no_xml.docx',docx(b'\xff\x00'*1000,whole=True)
    yield 'many_parts.docx',docx(b'',[(f'p{i}',b'') for i in range(60_000)])
    yield 'stored_zip.docx',zipped([('word/document.xml',docx(b''))])
    b=bytearray(docx(b'')); at=b.find(b'PK\x01\x02'); b[at+8]|=1; yield 'locked_flag.docx',bytes(b)
    b=bytearray(docx(b'')); at=b.find(b'PK\x01\x02'); b[at+10:at+12]=struct.pack('<H',99); yield 'method.docx',bytes(b)
    b=bytearray(docx(b'')); at=b.find(b'PK\x01\x02'); b[at+24:at+28]=b'\xff'*4; yield 'size_lie.docx',bytes(b)
    b=bytearray(docx(b'')); at=b.find(b'PK\x01\x02'); b[at+42:at+46]=b'\xf0'*4; yield 'offset_lie.docx',bytes(b)
    b=bytearray(docx(b'')); b[-12:-4]=b'\xff'*8; yield 'directory_lie.docx',bytes(b)

def books():
    for n in (b'div',b'p',b'svg',b'table',b'ul',b'math',b'section',b'i'): yield f'deep_{n.decode()}.epub',epub([b'<p>kept</p>'+deep(n,400_000)])
    yield 'bomb.epub',epub([b'<p>kept</p>'+b'a '*400_000_000])
    yield 'bombs.epub',epub([b'<p>kept</p>'+b'a '*3_000_000]*100)
    yield 'bomb_tags.epub',epub([b'<p>kept</p>'+b'<p>x'*20_000_000])
    yield 'bomb_opf.epub',epub([b'<p>kept'],b'<package><manifest>'+b'<item id="a" href="b"/>'*10_000_000)
    yield 'bomb_container.epub',zipped([('META-INF/container.xml',b' '*600_000_000)])
    yield 'spine_missing.epub',epub([b'<p>kept'],b'<package><manifest><item id="0" href="0.xhtml"/></manifest><spine><itemref idref="0"/>'+b''.join(b'<itemref idref="m%d"/>'%i for i in range(1_000_000))+b'</spine></package>')
    yield 'spine_same.epub',epub([b'<p>kept'+b' x'*100_000],b'<package><manifest><item id="0" href="0.xhtml"/></manifest><spine>'+b'<itemref idref="0"/>'*1_000_000+b'</spine></package>')
    yield 'items_same.epub',epub([b'<p>kept'+b' x'*100_000],b'<package><manifest>'+b''.join(b'<item id="%d" href="./%s0.xhtml" media-type="x/html"/>'%(i,b'./'*(i%50)) for i in range(200_000))+b'</manifest><spine><itemref idref="0"/></spine></package>')
    yield 'fallbacks.epub',epub([b'<p>kept'],b'<package><manifest><item id="0" href="0.xhtml"/><item id="a" href="a" media-type="b" fallback="a"/></manifest><spine><itemref idref="0"/>'+b'<itemref idref="a"/>'*500_000+b'</spine></package>')
    opf=b'<package><manifest><item id="0" href="0.xhtml" media-type="application/xhtml+xml"/><item id="n" href="n.%s" properties="nav" media-type="application/xhtml+xml"/></manifest><spine%s><itemref idref="0"/></spine></package>'
    yield 'nav_many.epub',epub([b'<p>kept</p>'+b''.join(b'<p id="x%d">a'%i for i in range(200_000))],opf%(b'xhtml',b''),[('n.xhtml',b'<nav>'+b''.join(b'<a href="0.xhtml#x%d">title %d</a>'%(i,i) for i in range(200_000))+b'</nav>')])
    yield 'nav_deep.epub',epub([b'<p>kept'],opf%(b'xhtml',b''),[('n.xhtml',deep(b'nav',400_000))])
    yield 'nav_long.epub',epub([b'<p>kept'],opf%(b'xhtml',b''),[('n.xhtml',b'<nav><a href="0.xhtml">'+b'a'*100_000_000)])
    yield 'ncx_deep.epub',epub([b'<p>kept'],(opf%(b'ncx',b' toc="n"')).replace(b' properties="nav"',b''),[('n.ncx',b'<navPoint><navLabel>a</navLabel><content src="0.xhtml"/>'*300_000)])
    yield 'locked_many.epub',epub([b'<p>kept'],None,[('META-INF/encryption.xml',b''.join(b'<CipherReference URI="x%d"/>'%i for i in range(500_000)))])
    yield 'locked_all.epub',epub([b'\0\1\2'],None,[('META-INF/encryption.xml',b'<CipherReference URI="0.xhtml"/>')])
    yield 'chapters.epub',epub([b'<h1>a</h1><p>kept']*15_000)
    yield 'entities.epub',epub([b'<?xml version="1.0"?>'+entities()+b'<html><p>kept &e39;</p></html>'])
    yield 'path.epub',zipped([('META-INF/container.xml',CONTAINER.replace(b'c.opf',b'../../../etc/passwd'))])
    yield 'path_long.epub',zipped([('META-INF/container.xml',CONTAINER.replace(b'c.opf',b'a/'*1_000_000))])
    yield 'cut.epub',epub([b'<p>kept'])[:-60]

def texts():
    yield 'long_line.txt',b'a'*100_000_000
    yield 'lines.txt',b'\n'*100_000_000
    yield 'returns.txt',b'\r'*60_000_000
    yield 'controls.txt',b'\x01'*60_000_000
    yield 'feeds.txt',b'\x0c'*60_000_000
    yield 'headings.md',b'# a\n'*8_000_000
    yield 'headings_long.md',(b'# '+b'a'*1000+b'\n')*60_000
    yield 'fences.md',b'```\n'*10_000_000
    yield 'zeros.txt',b'\0'*1_000_000
    yield 'cut_utf8.txt','kept ä'.encode()[:-1]
    yield 'long_utf8.txt',b'\xfc\x84\x80\x80\x80\x80'
    yield 'surrogate.txt',b'\xed\xa0\x80'
    yield 'bom.txt',b'\xef\xbb\xbf'
    yield 'utf16_surrogate.txt',b'\xff\xfe'+b'\x00\xd8'*1_000_000
    yield 'utf16_long.txt','kept '.encode('utf-16')*8_000_000
    yield 'wide_long.txt',b'a\0'*40_000_000
    yield 'marks.txt',('a'+'\u0301'*1_000_000).encode()
    yield 'bidi.txt',('\u202e'*5_000_000).encode()
    yield 'spaces.txt',b' '*100_000_000
    yield 'random.txt',R.randbytes(4_000_000)
    yield 'rtf.txt',b'{\\rtf1 '+b'{'*1_000_000
    yield 'ole.doc',b'\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1'+b'\xff'*100_000
    yield 'gzip.txt',zlib.compress(b'a'*1000)
    yield 'empty.pdf',b''
    yield 'name.docx',b'kept'
    yield 'name.epub',b'PK\x05\x06'+b'\0'*18
    yield 'name.html',b'%PDF-1.7'
