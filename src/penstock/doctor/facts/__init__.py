"""What can be seen, in small frozen values. Each look is bounded in time and never raises for what
is merely not there: that is a fact too."""
