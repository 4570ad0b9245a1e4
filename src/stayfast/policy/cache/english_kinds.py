"""Words of English that exchange, narrow or repeat each other: the tables behind the word rules of `lexical`.

    KINDS       groups of words that answer the same question ("which month?"). Two members are never equivalent
    STRICT      kinds of which one question must not have a member that the other lacks
    NEAR        kinds that count only in nearly equal questions, since paraphrases exchange their words
    SYNONYMS    words that mean the same in a help desk's question; each group is one term
    PHRASES     pairs of words that are one term; "_" is none
    CASED       words that are others if they have a capital: "US" is no pronoun, and "May" no verb
    SYMBOLS     characters that stand for a word of a kind
    SOFT        words without content in a question; they are no terms
    LIGHT       words that paraphrases add and leave out; they are not in the frame of a question
    LINKERS     words that link two terms. DIRECTED: those with a direction. REVERSED: each one's opposite direction

Source: collected by hand. Synonyms are from the pairs of BANKING77 with one intent that the rules rejected.
When wrong: a word with two meanings has one entry. "Orange" is a color, on a plate, too.
"""

from typing import Final


def _index_words(listed: dict[str, str]) -> dict[str, str]:
    return {word: kind for kind, words in listed.items() for word in words.split()}


def _words(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


def _index_groups(listed: str) -> dict[str, str]:
    """The first word of each word's group."""
    return {word: group.split()[0] for group in listed.split(";") for word in group.split()}


def _index_phrases(listed: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for phrase in listed.split(";"):
        first, second, term = phrase.split()
        found.setdefault(first, {})[second] = term
    return found


KINDS: Final = _index_words({
    "month": "january february april june july august september october november december may_month march_month",
    "weekday": "monday tuesday wednesday thursday friday saturday sunday weekday weekend christmas easter "
        "thanksgiving halloween ramadan",
    "season": "spring summer autumn winter",
    "daytime": "morning noon afternoon evening night midnight midday am_time pm bc ad",
    "day": "today tomorrow yesterday tonight",
    "cadence": "hourly daily weekly fortnightly biweekly monthly quarterly yearly",
    "timespan": "millisecond second minute hour day week month quarter year decade century",
    "currency": "usd eur gbp jpy chf cad aud inr cny krw brl mxn sek nok dkk pln zar dollar euro pound yen franc "
        "rupee yuan krona peso zloty bitcoin btc eth ethereum dogecoin",
    "unit": "km kilometer mile meter metre cm centimeter mm millimeter inch foot yard kg kilogram gram lb ounce "
        "stone liter litre gallon pint ml kb kilobyte mb megabyte gb gigabyte tb terabyte celsius fahrenheit "
        "kelvin kwh watt volt ampere acre hectare knot mph kph kmh tablespoon teaspoon cup bar psi pascal "
        "joule calorie degree radian",
    "quantity": "all every each any some most several few many both either neither",
    "limit": "only at_least at_most more_than less_than",
    "variant": "pro plus ultra lite premium enterprise",
    "size": "mini small medium large tiny huge xs xl xxl",
    "place": "afghanistan albania algeria andorra angola argentina armenia australia austria azerbaijan bahrain "
        "bangladesh belarus belgium belize bolivia bosnia botswana brazil britain brunei bulgaria cambodia "
        "cameroon canada chile china colombia congo croatia cuba cyprus czechia denmark ecuador egypt england "
        "eritrea estonia ethiopia fiji finland france gambia georgia germany ghana greece greenland guatemala "
        "guinea guyana haiti honduras hungary iceland india indonesia iran iraq ireland israel italy jamaica "
        "japan jordan kazakhstan kenya korea kosovo kuwait laos latvia lebanon lesotho liberia libya "
        "liechtenstein lithuania luxembourg madagascar malawi malaysia mali malta mexico moldova monaco "
        "mongolia montenegro morocco mozambique myanmar namibia nepal netherlands nicaragua niger nigeria "
        "norway oman pakistan palestine panama paraguay peru philippines poland portugal qatar romania russia "
        "rwanda scotland senegal serbia singapore slovakia slovenia somalia spain sudan sweden switzerland "
        "syria taiwan tajikistan tanzania thailand tunisia turkey uganda ukraine uk uruguay usa uzbekistan "
        "venezuela vietnam wales yemen zambia zimbabwe europe asia africa america antarctica oceania alabama "
        "alaska arizona arkansas california colorado connecticut delaware florida hawaii idaho illinois "
        "indiana iowa kansas kentucky louisiana maine maryland massachusetts michigan minnesota mississippi "
        "missouri montana nebraska nevada new_hampshire new_jersey new_mexico new_york north_carolina "
        "north_dakota ohio oklahoma oregon pennsylvania rhode_island south_carolina south_dakota tennessee "
        "texas utah vermont virginia washington wisconsin wyoming bavaria catalonia ontario quebec amsterdam "
        "athens atlanta auckland bangkok barcelona beijing belfast belgrade berlin birmingham boston bristol "
        "brussels bucharest budapest cairo calgary chicago cologne copenhagen dallas delhi denver detroit "
        "dubai dublin edinburgh frankfurt geneva glasgow hamburg hanoi helsinki hong_kong houston istanbul "
        "jakarta jerusalem johannesburg kyoto kyiv lagos leeds lisbon liverpool london los_angeles luton lyon "
        "madrid manchester manila marseille melbourne miami milan montreal moscow mumbai munich nairobi "
        "naples osaka oslo ottawa paris philadelphia phoenix portland porto prague reykjavik riga rome "
        "rotterdam san_diego san_francisco seattle seoul shanghai shenzhen sofia stockholm stuttgart sydney "
        "tallinn tokyo toronto turin valencia vancouver venice vienna vilnius warsaw zagreb zurich albany",
    "language": "english german french spanish portuguese italian dutch polish russian ukrainian chinese mandarin "
        "cantonese japanese korean arabic hebrew hindi bengali urdu turkish greek latin swedish norwegian "
        "danish finnish czech slovak hungarian romanian bulgarian serbian croatian thai vietnamese indonesian "
        "malay swahili welsh irish persian farsi catalan esperanto tamil",
    "program": "python java javascript typescript rust golang ruby php perl scala kotlin swift haskell cobol fortran "
        "lua matlab julia c++ c# r",
    "format": "pdf docx doc xlsx xls csv tsv json yaml toml xml html markdown latex txt rtf epub mobi png jpg gif "
        "svg webp bmp tiff mp3 mp4 wav flac avi mkv mov zip tar gzip rar 7z parquet avro protobuf sql",
    "brand": "visa mastercard maestro amex paypal klarna stripe venmo zelle apple google amazon microsoft facebook "
        "meta instagram whatsapp telegram tiktok twitter linkedin netflix hulu spotify youtube disney uber "
        "lyft airbnb ebay walmart target costco tesco aldi lidl ikea samsung huawei xiaomi nokia sony "
        "nintendo playstation xbox dell hp lenovo asus acer nvidia amd intel toyota honda ford tesla bmw audi "
        "mercedes volkswagen volvo hyundai kia android ios iphone ipad windows macos linux ubuntu fedora "
        "debian centos chrome firefox safari edge opera mysql postgres mongodb redis sqlite oracle aws azure "
        "gcp slack zoom teams discord dropbox onedrive gmail outlook yahoo github gitlab bitbucket react "
        "angular vue svelte django flask rails docker podman kubernetes dhl fedex ups usps excel sheets "
        "powerpoint",
    "planet": "mercury venus mars jupiter saturn uranus neptune pluto",
    "person": "child adult senior student teacher baby infant teenager minor toddler employee employer manager "
        "patient doctor nurse guest tenant landlord wife husband neighbour parent buyer seller customer "
        "vendor freelancer",
    "animal": "dog cat puppy kitten horse rabbit bird fish hamster cow pig chicken sheep goat",
    "meal": "breakfast lunch dinner brunch",
    "color": "red blue green yellow orange purple pink black white brown gray",
    "verdict": "free legal illegal safe dangerous healthy unhealthy mandatory optional",
    "tier": "basic standard business starter gold silver platinum trial",
    "ask": "when where who why how_much how_many how_old how_far how_often",
})
STRICT: Final = _words("cadence currency language limit month season variant weekday")
NEAR: Final = _words("ask limit quantity")

SYNONYMS: Final = _index_groups(
    "account profile;delete remove erase;cancel terminate end stop;change update modify edit alter amend;buy purchase;"
    "price cost fee charge;delivery shipping shipment ship deliver dispatch;package parcel order;activate enable;"
    "deactivate disable;get receive obtain acquire collect;start begin launch;fix repair solve resolve troubleshoot;"
    "help support assist assistance;phone mobile smartphone cellphone cell;pic picture;picture photo image;film movie;"
    "car automobile vehicle;job work;fast quick rapid;extra additional;real actual genuine;incorrect wrong;"
    "convert exchange swap;recall remember;strange odd unusual weird;nearest closest;verify verification check;"
    "arrive reach come;automatic auto automatically;merchant retailer;abroad overseas;"
    "immediate immediately now instantly;physical tangible;duplicate double;reset restore recover;"
    "password passphrase passcode;speak talk;method technique;produce yield;run execute;author writer;item product;"
    "large big huge;error mistake problem issue trouble;create make generate build;find locate;"
    "show display view see appear;explain describe;meaning mean definition;difference differ distinguish;"
    "safe secure security;register enroll join;login signin;logout signout;choose select pick;allow permit;bill invoice;"
    "discount coupon promo voucher;shop store;internet wifi;connect link;identity id;confirm validate;need require must;"
    "maximum max maximal;minimum min minimal;advantage benefit;disadvantage drawback;holiday vacation;"
    "address location located;money cash fund;transfer remit;fail decline reject refuse bounce;lost lose missing;"
    "usa us america;television tv;child kid;person human people;doctor physician;kind type sort category;"
    "directory folder;app application;computer pc;ill sick;partner spouse;close shut;customer client user;"
    "employee staff;km kilometer kilometre;kg kilogram kilo;gram gramme;meter metre;lb lbs;mb megabyte;gb gigabyte;"
    "tb terabyte;kb kilobyte;usd dollar;eur euro;yen jpy;rupee inr;bitcoin btc;ethereum eth;midday noon;autumn fall;"
    "cv resume;trash bin garbage;ok okay;javascript js;typescript ts;markdown md;jpg jpeg;postgres postgresql;"
    "spanish castilian;chinese mandarin;persian farsi;bicycle bike;plane airplane aircraft;doc document;mum mom mother;"
    "dad father;laptop notebook;trip journey travel;every each;biweekly fortnightly;yearly annual annually"
)

PHRASES: Final = _index_phrases(
    "united states usa;united kingdom uk;new york new_york;new jersey new_jersey;new mexico new_mexico;"
    "new hampshire new_hampshire;hong kong hong_kong;los angeles los_angeles;san francisco san_francisco;"
    "san diego san_diego;north carolina north_carolina;north dakota north_dakota;south carolina south_carolina;"
    "south dakota south_dakota;rhode island rhode_island;at least at_least;at most at_most;more than more_than;"
    "less than less_than;fewer than less_than;sign up register;sign in login;sign out logout;log in login;"
    "log out logout;turn on enable;turn off disable;switch on enable;switch off disable;slow down slow;speed up fast;"
    "top up top_up;top ups top_up;two times twice;who wrote author;set up install;setup up install;"
    "mother tongue language;how much how_much;how many how_many;how old how_old;how far how_far;how often how_often;"
    "how long when;how to _;not sure _;not know _;not recognize _;dont know _;dont understand _;dont recognize _;"
    "dont recognise _;no idea _;no reason _;cant figure _;in touch contact;in us usa;the us usa;get back return;"
    "send back return;credit card credit_card;debit card debit_card"
)

CASED: Final = {
    "US": "usa", "UK": "uk", "EU": "europe", "May": "may_month", "March": "march_month", "A": "letter_a",
    "Go": "golang", "Turkey": "turkey", "AM": "am_time", "PM": "pm", "BC": "bc", "AD": "ad",
}
SYMBOLS: Final = {"$": "usd", "\u20ac": "eur", "\u00a3": "gbp", "\u00a5": "yen", "\u20b9": "inr"}
SOFT: Final = _words(
    "_ able best details explain get gets getting give go going got guide happen happens hello help hey hi info "
    "information know like make need possible process question step steps sure tell thank thanks think try trying want "
    "wanted wants way ways wonder wondering"
)
LIGHT: Final = _words(
    "a also am an are be can could did do does has have her his i is it just my our please so that the their there this "
    "was we were will would you your"
)
LINKERS: Final = _words("after against and at before by for from in into of on onto or over than to under versus "
                        "via vs with without")
DIRECTED: Final = _words("after against before by from into onto over than to")
REVERSED: Final = {"to": "from", "into": "from", "onto": "from", "from": "to", "before": "after", "after": "before"}
