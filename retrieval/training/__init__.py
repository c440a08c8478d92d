"""Training of sentence encoders on labelled or plain texts: the objectives of SBERT, SimBERT, SimCSE and CoSENT."""
