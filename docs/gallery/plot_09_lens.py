"""
The logit lens
==============

What the stream below every layer would say if it were the last. A reading, not an effect.
"""

import circuits

model = circuits.load("mini")
lens = circuits.logit_lens(model, 'The opposite of "large" is "', answer="small")
figure = lens.figure()
