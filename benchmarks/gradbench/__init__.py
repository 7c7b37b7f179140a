"""GradBench (github.com/gradbench/gradbench): its evals on the tape and on peers, a tool that speaks its protocol, and a runner."""
