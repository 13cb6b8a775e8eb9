"""What every Python that these tests start does first: it looks for garbage less often.

Most of these programs end after a second, in which they import thousands of objects that stay. To look at these again
and again took 7 % of all jobs' time.
"""

import gc

gc.set_threshold(50_000, 20, 20)
