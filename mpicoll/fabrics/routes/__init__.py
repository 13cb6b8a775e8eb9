"""The routes: how a call is carried out. Each route binds a call once, and gives the plan that makes it."""
