"""`penstock ui`: a page that shows what Penstock does on this machine. It changes nothing.

    server     HTTP on the loopback interface: who may ask, and what each address answers
    overview   the values that the page shows, from penstock.api
    results    benchmark runs: their list, reports and files
    page/      HTML, CSS and JavaScript, served as they are

Values reach the page as JSON only, and the script puts them into it as text; no HTML is made from
them. Nothing here talks to a store, a mount or the state except through penstock.api and the list
of runs of penstock.bench.
"""
