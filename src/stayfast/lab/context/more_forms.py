"""The other two kinds of conversations: planning an event, and analysing data; and sentences in other languages."""

from stayfast.lab.context.forms import CODING, SUPPORT, Domain, FactForm, RuleForm, StepForm

PLANNING = Domain(
    "planning",
    (
        "We want to plan our company retreat.",
        "Help me organise a conference for our users.",
        "I need to plan a long trip for a group.",
    ),
    (
        FactForm(
            "money",
            ("We can spend {v} on {x}.", "The budget for {x} is {v}.", "At most {v} for {x}, please."),
            ("With {v} for {x} there are good options.", "{x} for {v} should work."),
            ("budget for {x} = {v}", "{v} available for {x}", "{x} may cost up to {v}"),
            ("catering", "the venue", "buses", "the speakers", "printing"),
        ),
        FactForm(
            "count",
            ("{v} {x} have registered so far.", "We expect {v} {x}."),
            ("A room for {v} {x} is large.", "Seats for {v} {x} are reserved."),
            ("{x} expected = {v}", "{v} {x} take part"),
            ("guests", "students", "volunteers", "musicians"),
        ),
        FactForm(
            "date",
            ("The {x} takes place on {v}.", "We set the {x} for {v}."),
            ("The {x} on {v} is in the calendar.", "{v} works for the {x}."),
            ("{x} on {v}", "date of the {x} = {v}"),
            ("dinner", "workshop", "kickoff", "excursion"),
        ),
        FactForm(
            "time",
            ("The {x} begins at {v}.", "Let's begin the {x} at {v}."),
            ("The {x} at {v}, noted.", "{v} for the {x} is early."),
            ("{x} begins at {v}", "begin of the {x} = {v}"),
            ("breakfast", "keynote", "shuttle", "tour"),
        ),
        FactForm(
            "name",
            ("{v} is responsible for {x}.", "Ask {v} about {x}."),
            ("I put {v} down for {x}.", "{v} will be happy to do {x}."),
            ("{x} = {v}", "{v} takes care of {x}"),
            ("transport", "the hotel", "security", "music"),
        ),
        FactForm(
            "distance",
            ("The {x} is {v} from the station.", "It is {v} from the station to the {x}."),
            ("{v} to the {x} is a short ride.", "At {v}, the {x} needs a bus."),
            ("{x} is {v} from the station", "distance from the station to the {x} = {v}"),
            ("hotel", "lake", "castle", "campsite"),
        ),
        FactForm(
            "booking",
            ("The {x} is booked under {v}.", "{v} is the reservation of the {x}."),
            ("I can see {v} for the {x}.", "Keep {v} at hand for the {x}."),
            ("reservation of the {x} = {v}", "{x} booked as {v}"),
            ("boat", "hall", "coach", "cabin"),
        ),
    ),
    (
        RuleForm(
            (
                "No {x} on the menu, some of us are allergic.",
                "Please avoid {x} in all meals.",
                "The meals must not contain {x}.",
            ),
            (
                ("meals must not contain {x}", "meals must contain {x}"),
                ("menu without {x}", "menu with {x}"),
                ("no {x} in the meals", "{x} in the meals"),
            ),
            ("peanuts", "shellfish", "pork", "gluten"),
        ),
        RuleForm(
            ("Don't book {x} with overnight stops.", "We will not take {x} with overnight stops."),
            (
                ("no {x} with overnight stops", "{x} with overnight stops"),
                ("{x} with overnight stops must not be booked", "{x} with overnight stops must be booked"),
            ),
            ("trains", "flights", "buses"),
        ),
        RuleForm(
            ("The {x} should not be told about the surprise.", "Never mention the surprise to the {x}."),
            (
                ("never mention the surprise to the {x}", "mention the surprise to the {x}"),
                ("the {x} must not learn of the surprise", "the {x} must learn of the surprise"),
            ),
            ("boss", "guests", "speakers"),
        ),
        RuleForm(
            ("Children are not allowed at the {x}.", "The {x} is without children."),
            (
                ("no children at the {x}", "children at the {x}"),
                ("{x} takes place without children", "{x} takes place with children"),
            ),
            ("dinner", "tasting", "night walk"),
        ),
    ),
    (
        StepForm(
            'book_room({{"room": "{x}"}})',
            ("Booked.", '{{"ok": true}}'),
            ('{{"ok": false, "error": "not available"}}', "Error: not available"),
            ("{x} room booked", "booked the {x} room"),
            ("booking of the {x} room", "{x} room not available"),
            ("blue", "garden", "tower", "corner"),
        ),
        StepForm(
            'send_invitation({{"to": "{x}"}})',
            ("Sent.", '{{"ok": true}}'),
            ("Error: mailbox full", '{{"error": "address bounced"}}'),
            ("invitation sent to the {x}", "the {x} were invited"),
            ("invitation to the {x}", "inviting the {x}, mail bounced"),
            ("partners", "press", "alumni", "sponsors"),
        ),
        StepForm(
            'reserve_transport({{"for": "{x}"}})',
            ("Reserved.", '{{"ok": true}}'),
            ("Error: no vehicle available", '{{"error": "fully booked"}}'),
            ("transport for the {x} reserved", "reserved transport for the {x}"),
            ("transport for the {x}", "reserving transport for the {x}"),
            ("luggage", "crew", "evening", "children"),
        ),
    ),
    (
        "It should feel relaxed and not like work.",
        "Last year it rained all the time.",
        "People loved the fire in the evening.",
        "I will discuss this with the others.",
        "That sounds good to me.",
        "We did something similar some years ago.",
    ),
    (
        "That sounds like a lovely plan, and I am happy to help with the details.",
        "There are several good places nearby.",
        "I collected a few ideas: a walk in the forest, a cooking class together, or a quiet evening with board games.",
        "From experience it is good to leave some free time between two points of the programme.",
    ),
    (
        "A group plans an event with the assistant.",
        "The assistant helps to plan an event.",
        "The talk is about planning an event.",
    ),
    (
        ("The insurance still has to be arranged.", "insurance to be arranged"),
        ("The weather plan is still open.", "plan for bad weather"),
    ),
)

DATA = Domain(
    "data",
    (
        "I have an export of our sales and some questions.",
        "Let's look at the measurements of the pilot plant.",
        "Please help me understand these numbers.",
    ),
    (
        FactForm(
            "money",
            ("Revenue in {x} was {v}.", "We made {v} in {x}."),
            ("{v} in {x} is what the table shows.", "The {v} of {x} include returns."),
            ("revenue in {x} = {v}", "{x} brought {v}"),
            ("Norway", "Bavaria", "Ontario", "Kyoto", "Lisbon"),
        ),
        FactForm(
            "percent",
            ("The {x} rate is {v}.", "We measured a {x} rate of {v}."),
            ("A {x} rate of {v} is usual.", "{v} as {x} rate, I see."),
            ("{x} rate = {v}", "{x} rate of {v} measured"),
            ("churn", "conversion", "defect", "return"),
        ),
        FactForm(
            "large",
            ("The {x} table has {v} rows.", "There are {v} rows in the {x} table."),
            ("Scanning the {v} rows of the {x} table takes a while.", "{v} rows in {x}, correct."),
            ("{x} table has {v} rows", "rows of the {x} table = {v}"),
            ("orders", "events", "sensors", "invoices"),
        ),
        FactForm(
            "temperature",
            ("The {x} runs at {v}.", "We keep the {x} at {v}."),
            ("{v} in the {x} is fine.", "The {x} at {v} seems stable."),
            ("temperature of the {x} = {v}", "{x} kept at {v}"),
            ("reactor", "freezer", "dryer", "boiler"),
        ),
        FactForm(
            "symbol",
            ("The column for {x} is {v}.", "{v} holds the {x}."),
            ("I group by {v} to get the {x}.", "{v} has missing values for some {x}."),
            ("column of the {x} = {v}", "{x} in column {v}"),
            ("region", "weight", "customer age", "batch"),
        ),
        FactForm(
            "path",
            ("The {x} file is at {v}.", "I put the {x} file at {v}."),
            ("I read {v}, the {x} file.", "{v} opens without problems, it is the {x} one."),
            ("{x} file = {v}", "{x} data at {v}"),
            ("January", "raw", "cleaned", "reference"),
        ),
        FactForm(
            "duration",
            ("The {x} job takes {v}.", "It takes {v} to run the {x} job."),
            ("{v} for the {x} job is long.", "The {x} job, {v}, could be faster."),
            ("{x} job takes {v}", "run time of the {x} job = {v}"),
            ("import", "training", "report", "cleaning"),
        ),
    ),
    (
        RuleForm(
            (
                "Do not include {x} in the totals.",
                "The totals must not include {x}.",
                "Leave {x} out of the totals, never add it.",
            ),
            (
                ("totals must not include {x}", "totals must include {x}"),
                ("totals without {x}", "totals with {x}"),
                ("{x} not included in the totals", "{x} included in the totals"),
            ),
            ("refunds", "test orders", "taxes", "samples"),
        ),
        RuleForm(
            ("Never share the {x} with third parties.", "The {x} must not be shared with third parties."),
            (
                ("{x} never shared with third parties", "{x} shared with third parties"),
                ("{x} must not be shared with third parties", "{x} may be shared with third parties"),
            ),
            ("customer names", "salaries", "recipes"),
        ),
        RuleForm(
            ("The {x} sensor does not work in the dark.", "In the dark the {x} sensor won't work."),
            (
                ("{x} sensor does not work in the dark", "{x} sensor works in the dark"),
                ("{x} sensor is unable to work in the dark", "{x} sensor is able to work in the dark"),
            ),
            ("left", "outer", "spare"),
        ),
        RuleForm(
            ("Don't interpolate missing {x}.", "Missing {x} should not be interpolated."),
            (
                ("missing {x} must not be interpolated", "missing {x} must be interpolated"),
                ("do not interpolate missing {x}", "interpolate missing {x}"),
            ),
            ("prices", "temperatures", "dates"),
        ),
    ),
    (
        StepForm(
            'run_query({{"about": "{x}"}})',
            ('{{"ok": true, "rows": []}}', "Query finished."),
            ("Error: column unknown", '{{"error": "time-out"}}'),
            ("query about {x} finished", "queried {x}"),
            ("query about {x}", "querying {x}"),
            ("margins", "seasons", "suppliers", "outliers"),
        ),
        StepForm(
            'load_file({{"name": "{x}"}})',
            ("Loaded.", '{{"ok": true}}'),
            ("Error: wrong delimiter", '{{"error": "no such file"}}'),
            ("{x} file loaded", "loaded the {x} file"),
            ("loading of the {x} file", "{x} file could not be loaded"),
            ("stock", "weather", "staff", "price"),
        ),
        StepForm(
            'draw_chart({{"of": "{x}"}})',
            ("Chart saved.", '{{"ok": true}}'),
            ("Error: not enough points", '{{"error": "out of memory"}}'),
            ("chart of the {x} drawn", "drew the {x} chart"),
            ("chart of the {x}", "drawing the {x} chart"),
            ("trend", "histogram", "forecast", "ranking"),
        ),
    ),
    (
        "I would have expected something else.",
        "My manager will ask me about this tomorrow.",
        "Interesting, go on.",
        "We collected this over a long time.",
        "I am not an expert in statistics, so keep it simple.",
        "Good.",
    ),
    (
        "The distribution is skewed, so the median tells more than the mean.",
        "I looked at the data from several sides.",
        "There may be a seasonal effect, but one would need a longer series to be sure about it.",
        "Two groups behave in the same way here, which supports the simple explanation.",
    ),
    (
        "An analyst examines data with the assistant.",
        "The assistant helps to analyse data.",
        "The talk is about a data set.",
    ),
    (
        ("A comparison with last season is still to be made.", "comparison with last season"),
        ("The definition of an active customer is still open.", "definition of an active customer"),
    ),
)

# Sentences of users in other languages, and what an English summary writes of them. {v}: an amount, {o}: an order.
FOREIGN = (
    ("Das kostet {v} und darf nicht teurer werden.", "Genau, {v}.", "amount in question = {v}"),
    ("Bitte liefern Sie {o} niemals ohne Rechnung.", "Noch einmal: {o}.", "order in question: {o}"),
    ("Je ne veux pas payer plus de {v}.", "Oui, {v}.", "amount in question = {v}"),
    ("La commande {o} est arrivée sans facture.", "C'est la commande {o}.", "order in question: {o}"),
    ("No puedo pagar {v} sin descuento.", "Son {v} en total.", "amount in question = {v}"),
)

DOMAINS = (SUPPORT, CODING, PLANNING, DATA)
