"""A support bot over the project's own docs: two searches side by side, a slow look-up, a model, under one deadline.

    python -m examples.support_bot "How do I turn hedging off?"        in a terminal
    python -m examples.support_bot --page                              as a page that shows the channels
    stayfast serve --config examples/support_bot/stayfast.yaml         as the model `support-bot` of a gateway

Read `turn` first: it is the turn. `passages`, `words` and `meaning` are the retrieval, `desk` is what all turns share.
"""
