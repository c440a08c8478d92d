"""Sentence encoders from labelled pairs, triplets, inferences or plain texts: SBERT, CoSENT, SimBERT, SimCSE."""
