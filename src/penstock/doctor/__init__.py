"""What is wrong, slow or stuck on this machine, in plain words, with what to do.

Charter: `facts` look (each look has a deadline of its own, and none touches a mount, whose server
may be dead), `rules` judge what was seen and are pure, `examination` puts the two together for one
thing or for all. Nothing here changes anything.
"""
