"""How a call is carried out. Every route binds a call, once, into a plan."""
