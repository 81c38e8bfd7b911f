"""A worker for NVIDIA Dynamo, which brings the server, the router, discovery and the planner.

    client --> dynamo.frontend --prompt--> python -m twostroke.dynamo --disaggregation-mode prefill   reads it
                   |           <--where--                      ^
                   |                                           | blocks of keys and values, from worker to worker
                   +----request, where--> python -m twostroke.dynamo --disaggregation-mode decode    answers

Dynamo never sees a block: it carries the address of the worker that has read a prompt, and our workers do the rest.

`worker` is what Dynamo calls; `requests` and `load` turn its words into ours and back, and import nothing of it.
"""
