# Needs pypdf and poppler-utils; build with: cargo build --release -p riffle-documents --example text
# Share of known words found, and found in order, by reader. Usage: score.py FOLDER [reader...]
import sys,os,glob,re,subprocess,collections,difflib,unicodedata
D=sys.argv[1]; readers=sys.argv[2:] or ['riffle','pdftotext','pypdf']
def run(r,f):
    try:
        if r=='riffle': return subprocess.run([os.environ.get('RIFFLE_TEXT','target/release/examples/text'),f],capture_output=True,text=True,timeout=60).stdout
        if r=='pdftotext': return subprocess.run(['pdftotext',f,'-'],capture_output=True,text=True,timeout=60).stdout
        if r=='pypdf':
            import pypdf,logging; logging.disable(50)
            return '\n'.join(p.extract_text() for p in pypdf.PdfReader(f).pages)
    except Exception as e: return ''
def words(t):
    t=unicodedata.normalize('NFKC',t).replace('|',' ')
    t=re.sub('[\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff\u00ad]','',t)
    out=[]
    for w in t.split():
        if re.search('[\u2e80-\u9fff]',w): out+=list(w)
        else: out.append(w)
    return out
def lcs(a,b):
    # length of a common subsequence by Hunt-Szymanski
    import bisect
    pos=collections.defaultdict(list)
    for i,w in enumerate(b): pos[w].append(i)
    tails=[]
    for w in a:
        for p in reversed(pos.get(w,())):
            k=bisect.bisect_left(tails,p)
            if k==len(tails): tails.append(p)
            else: tails[k]=p
    return len(tails)
tot=collections.defaultdict(lambda:[0,0,0]); worst=[]
for f in sorted(glob.glob(D+'/*.pdf')):
    n=os.path.basename(f)[:-4]; k=words(open(f[:-4]+'.known').read()); line=f'{n:28s} {len(k):6d} '
    for r in readers:
        t=words(run(r,f)); found=sum((collections.Counter(k)&collections.Counter(t)).values())/len(k); order=lcs(k,t)/len(k)
        x=tot[r]; x[0]+=found; x[1]+=order; x[2]+=1
        line+=f'| {100*found:6.1f} {100*order:6.1f} '
    print(line,flush=True)
print('mean'.ljust(36)+''.join(f'| {100*tot[r][0]/tot[r][2]:6.1f} {100*tot[r][1]/tot[r][2]:6.1f} ' for r in readers), readers)
