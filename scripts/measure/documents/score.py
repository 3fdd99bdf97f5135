# Share of known words found, and found in order, by reader; then the files where riffle is behind pdftotext.
# Usage: score.py FOLDER [reader...]; a reader is riffle, pdftotext or pypdf. RIFFLE_TEXT names the example `text`
# (cargo build --release -p riffle-documents --example text). Needs pypdf and poppler-utils.
import bisect,collections,glob,os,re,subprocess,sys,unicodedata
folder=sys.argv[1]; readers=sys.argv[2:] or ['riffle','pdftotext','pypdf']
def text(reader,file):
    if reader=='pypdf':
        import logging,pypdf; logging.disable(50)
        try: return '\n'.join(page.extract_text() for page in pypdf.PdfReader(file).pages)
        except Exception: return ''
    program=[os.environ.get('RIFFLE_TEXT','target/release/examples/text'),file] if reader=='riffle' else ['pdftotext',file,'-']
    try: return subprocess.run(program,capture_output=True,timeout=60).stdout.decode('utf-8','replace')
    except subprocess.TimeoutExpired: return ''
def words(text):
    text=unicodedata.normalize('NFKC',text).replace('|',' ')
    text=re.sub('[\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff\u00ad]','',text)
    # Scripts without spaces count by character.
    return [w for word in text.split() for w in (list(word) if re.search('[\u2e80-\u9fff]',word) else [word])]
def in_order(known,found):
    # The length of a longest common subsequence by Hunt and Szymanski.
    places=collections.defaultdict(list)
    for at,word in enumerate(found): places[word].append(at)
    tails=[]
    for word in known:
        for at in reversed(places.get(word,())):
            k=bisect.bisect_left(tails,at)
            if k==len(tails): tails.append(at)
            else: tails[k]=at
    return len(tails)
sums=collections.defaultdict(lambda:[0,0]); behind=[]; files=sorted(glob.glob(folder+'/*.pdf'))
for file in files:
    name=os.path.basename(file)[:-4]; known=words(open(file[:-4]+'.known').read()); line=f'{name:24s} {len(known):6d}'; shares={}
    for reader in readers:
        found=words(text(reader,file)); common=sum((collections.Counter(known)&collections.Counter(found)).values())
        shares[reader]=(100*common/len(known),100*in_order(known,found)/len(known))
        for at in (0,1): sums[reader][at]+=shares[reader][at]
        line+='  %s %5.1f /%5.1f'%(reader,*shares[reader])
    print(line,flush=True)
    if 'riffle' in shares and 'pdftotext' in shares:
        gap=[a-b for a,b in zip(shares['riffle'],shares['pdftotext'])]
        if min(gap)<-1: behind.append((min(gap),name,shares))
for reader in readers: print('mean of %d files: %s %.1f / %.1f'%(len(files),reader,*(value/len(files) for value in sums[reader])))
for gap,name,shares in sorted(behind): print('behind pdftotext: %s by %.1f points'%(name,-gap))
