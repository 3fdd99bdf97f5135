# Words of the corpora: sentences and paragraphs from a fixed list, the same in every run, and the known text beside each file.
import os,random
R=random.Random(7)
W="the a of to in ship harbour captain weather letter merchant granary valley orchard committee ledger window river lantern winter evening morning careful distant certain official efficient different difficult affluent fifty first flower office waffle between against yesterday neighbour register machine engine pressure temperature column reading language memory attention sequence document paragraph".split()
HEBREW='השלום הוא דבר חשוב מאוד לכל אדם באשר הוא (ובפרט כאן) בשנת 1948 נכתב המסמך PDF הזה בעברית'
ARABIC='السلام عليكم ورحمة الله هذا نص عربي طويل لاختبار القراءة في سنة 2024 مع كلمة PDF في الوسط'
HINDI='हिन्दी में लिखा हुआ यह वाक्य परीक्षण के लिए है किताब और विद्यालय'
CHINESE='月光下的日本語と中文，這是一個測試文件。今天天气很好我们去图书馆读书一二三四五六七八九十百千万'
def sent(n=12):
    w=[R.choice(W) for _ in range(n)]; w[0]=w[0].capitalize(); return ' '.join(w)+'.'
def para(k=5): return ' '.join(sent(R.randint(7,16)) for _ in range(k))
def table(n=20): return [[f'Item {i}',R.choice(W)+' '+R.choice(W),str(R.randint(10,999)),f'{R.random()*100:.2f}'] for i in range(n)]
def known(out,name,t): open(os.path.join(out,f'{name}.known'),'w').write(t)
