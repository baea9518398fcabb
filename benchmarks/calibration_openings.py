"""How the calibration texts begin. All of it written for this project."""

from __future__ import annotations

# A system prompt may stand before the question.
QUESTIONS: tuple[tuple[str, ...], ...] = (
    ("Explain to a new colleague what a load balancer does.",),
    ("What should I pack for a week in the mountains in October?",),
    ("Write a short letter to a neighbour about a noisy dog. Be polite.",),
    ("You answer in one paragraph.", "Why do ships float although steel is heavier than water?"),
    ("Give me three ideas for a birthday party for a nine year old.",),
    ("How does a refrigerator keep things cold?",),
    ("Summarise in two sentences why sleep matters for learning.",),
    ("Write a function in Python that counts the words of a text.",),
    ("What is the difference between weather and climate?",),
    ("You are a careful translator.", "Translate into French: The train to the coast leaves late."),
    ("Tell me a story about a lighthouse keeper who is afraid of the dark.",),
    ("My bread doesn't rise. What may be wrong?",),
    ("Name five rivers in Europe and say one thing about each.",),
    ("How do I ask for a pay rise without sounding rude?",),
    ("Correct the grammar: He go to school every days and like mathematic.",),
    ("What does an operating system do while I am typing?",),
    ("Describe how tea came to be drunk all over the world.",),
    ("Give me a plan for learning to swim as an adult.",),
    ("Which is better for a beginner, the guitar or the piano?",),
    ("Explain what a database index is, with an everyday example.",),
    ("Write a product description for a wooden desk lamp.",),
    ("Answer briefly.", "How many legs do spiders have, and how many do insects have?"),
    ("Describe the water cycle in four steps.",),
    ("How can a small shop attract more customers?",),
    ("What is inflation, and who gains from it?",),
    ("Write a poem of eight lines about an old bicycle.",),
    ("What happens when I type an address into a browser?",),
    ("Is it safe to eat snow? Explain.",),
    ("List the advantages and disadvantages of working from home.",),
    ("Escribe un párrafo sobre la vida en un pueblo pequeño.",),
    ("Erkläre in einfachen Worten, was ein Magnet ist.",),
    ("Explique en trois phrases pourquoi le ciel est bleu.",),
    ("Rewrite more politely: Send me the report now.",),
    ("What is a good way to remember people's names?",),
    ("Which questions should I ask before I rent a flat?",),
    ("Write an SQL query that lists each customer's number of orders.",),
)

PROSE = (
    "The town lies on the northern bank of the river, where two old trade roads meet. It was",
    "The second album of the band was recorded over three weeks in a rented farmhouse, and",
    "After the war he returned to the university, where he was appointed professor of",
    "The storm formed off the western coast late in August. By the following morning",
    "In the early chapters of the novel, the narrator describes her childhood in",
    "Construction of the bridge began in the spring. The engineers had planned for",
    "The species is found in lowland forests, where it feeds on insects and small fruit. Adults",
    "During the season the club finished third in the league, and their captain scored",
    "The episode was written by the show's creator and directed by a newcomer. In it,",
    "The regiment crossed the border at dawn. Its commander had been ordered to",
    "The highway begins at a junction south of the city and runs eastward through",
    "Critics were divided over the film. One reviewer praised its photography but",
    "The church stands at the edge of the village. Its tower dates from",
    "The ship was launched in the autumn and joined the fleet two years later. She",
    "As a young painter she travelled to Italy, where she studied the works of",
    "The king died without an heir, and the council could not agree on",
    "The element was discovered when chemists examined a mineral from a Swedish mine.",
    "The game lets its players explore an island with the help of",
    "The museum opened in a former railway station. Its collection includes",
    "In the final match, the visitors took an early lead, but",
    "The song reached the top of the charts in several countries. Its lyrics tell of",
    "The expedition left harbour with two vessels and a crew of sixty. For months they",
    "The law was passed after a long debate in parliament. It requires that",
    "The temple was built by a local dynasty, and its walls show scenes of",
    "The comet was first seen by an amateur astronomer who",
    "The mill employed nearly four hundred people at its height. When the owners",
    "The painting shows a woman at a window. Behind her",
    "The election was held in November. The governor, who had served one term,",
    "The mushroom grows in small groups on dead wood. Its cap is",
    "The railway company was founded by a group of merchants who wanted",
    "The ancient city was abandoned after an earthquake. Excavations have shown that",
    "The actress began her career on the stage before she was offered",
    "Photosynthesis takes place in two stages. In the first,",
    "A good teacher knows that pupils learn at different speeds. That is why",
    "The company announced on Monday that it would close two of its plants. A spokesman said",
    "To repair a leaking tap, first turn off the water. Then",
    "Many people think that history is a list of dates. In truth,",
    "The heart pumps blood through two circuits. The first of them",
    "When she opened the door, the old man was sitting by the fire. He",
    "Renewable energy has become cheaper over the last decade, mainly because",
    "Researchers asked two hundred volunteers to keep a diary of",
    "The recipe is simple: flour, eggs, a little salt. But",
    "Our trip to the desert began with a flat tyre and",
    "The main idea of the essay is that freedom",
    "Volcanoes form where plates of the crust move apart or",
    "The patient complained of headaches which had begun",
    "A contract is an agreement between two parties. For it to be valid,",
    "The tribe lived by fishing and by trading salt with",
)

CODE = (
    'def moving_average(values, width):\n    """Return the mean of each window of `width` values."""\n',
    "import csv\nimport sys\n\n\ndef read_rows(path):\n",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "#include <stdio.h>\n\nint main(void) {\n    int total = 0;\n",
    "function debounce(callback, delay) {\n  let timer = null;\n",
    "SELECT customers.name, COUNT(orders.id) AS number\nFROM customers\n",
    "<!doctype html>\n<html>\n  <head>\n    <title>Opening hours</title>\n",
    "# Installing the server\n\n1. Download the archive and unpack it:\n\n```bash\n",
)

# Languages that the model samples poorly, and shapes of text that tenants send.
BY_HAND = (
    "El mercado abre a las seis de la mañana. Los vendedores colocan la fruta en cajas de madera y "
    "hablan del tiempo, de los precios y de sus hijos. A mediodía casi todo está vendido, y la plaza "
    "vuelve a quedar en silencio hasta la tarde, cuando los niños salen de la escuela y juegan al "
    "fútbol entre los puestos vacíos.",
    "Le vieux phare n'est plus habité depuis vingt ans, mais sa lampe tourne encore chaque nuit. Une "
    "fois par mois, un technicien monte les deux cents marches, nettoie les vitres et vérifie les "
    "câbles. Il dit que, de là-haut, on entend la mer respirer comme un animal endormi.",
    "Der Zug hielt auf freier Strecke, und niemand wusste, warum. Einige Reisende lasen weiter, "
    "andere sahen aus dem Fenster auf die nassen Felder. Nach einer halben Stunde sagte eine Stimme, "
    "dass ein Baum auf den Gleisen liege und man um Geduld bitte.",
    "La cucina della nonna era piccola e sempre calda. Sul tavolo c'erano farina, uova e un foglio "
    "con una ricetta che nessuno leggeva, perché lei la sapeva a memoria da quando era bambina.",
    "O rio desce da serra e atravessa três cidades antes de chegar ao mar. No verão quase seca; no "
    "inverno sobe tanto que as pontes são fechadas e as aulas são suspensas.",
    "Старый мост закрыли весной. Рабочие нашли трещины в опорах, и город решил построить новый. "
    "Пока его нет, люди переправляются на лодке, которую ведёт отставной капитан.",
    "图书馆每天早上九点开门。靠窗的座位总是最先坐满，因为那里可以看到花园。下雨的时候，读者会停下来听雨声。",
    "駅前の小さな店では、朝早くからパンを焼いています。近くの学校へ行く子どもたちが、窓の前で足を止めます。",
    "افتتحت المكتبة الجديدة في وسط المدينة. يزورها الطلاب بعد المدرسة، ويجلسون قرب النوافذ حتى المساء.",
    "| item | number | price |\n|---|---|---|\n| bolts, M6 | 200 | 14.20 |\n| washers | 400 | 6.80 |\n"
    "| hinges | 12 | 31.00 |\n| varnish, 1 l | 3 | 28.50 |\n\nTotal without tax: 80.50. Delivery takes "
    "four working days. Please quote the order's number when you call.",
    '{"order": {"id": "A-20417", "placed": "2024-03-18T09:12:44Z", "lines": [{"sku": "LAMP-02", '
    '"count": 2, "price": 39.9}, {"sku": "BULB-11", "count": 6, "price": 4.25}], "note": "leave at the '
    'back door", "paid": true}}\n{"order": {"id": "A-20418", "placed": "2024-03-18T09:15:02Z", "lines": '
    '[{"sku": "DESK-07", "count": 1, "price": 249.0}], "note": null, "paid": false}}',
    "2024-05-02 07:41:10 INFO  worker-3 started, 8 jobs waiting\n2024-05-02 07:41:12 WARN  worker-3 job "
    "5521 took 1.9 s, limit is 2.0 s\n2024-05-02 07:41:13 ERROR worker-3 job 5522 failed: connection "
    "refused by 10.0.4.17:5432\n2024-05-02 07:41:18 INFO  worker-3 job 5522 retried, done in 0.4 s\n"
    "2024-05-02 07:42:00 INFO  worker-3 queue is empty",
    "From: Marta\nTo: the whole team\nSubject: Move to the new office\n\nDear all,\n\nthe boxes will be "
    "delivered on Wednesday. Please label each with your name and the number of your new room. Screens "
    "travel in the blue crates; plants travel with you. On Friday there's no network from noon on, so "
    "plan your calls for the morning. If something is missing on Monday, write to me and not to the "
    "removal firm.\n\nThank you for your patience\nMarta",
    "for (int i = 0; i < rows; ++i) {\n  float sum = 0.0f;\n  for (int j = 0; j < columns; ++j) {\n    "
    "sum += weights[i * columns + j] * input[j];\n  }\n  output[i] = sum > 0.0f ? sum : 0.0f;\n}\n",
)
