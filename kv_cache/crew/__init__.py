"""Ranks that run together.

app/crew_part.py what this process is: a run alone, a rank, or the coordinator of ranks
rendezvous.py   how the ranks of an MPI job learn where the coordinator is; the only use of MPI
wire.py         messages between a rank and the coordinator: JSON over TCP, with a shared key
seat.py         the rank's end: a thread that listens and tells, and a gate before the window
coordinator.py  the other end, in a process that is no rank: opens all windows together, adds
                up what the ranks tell, ends all when one is lost, and collects their results
"""
