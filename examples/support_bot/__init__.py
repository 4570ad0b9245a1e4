"""A support bot over the project's own docs: two concurrent searches, a slow look-up and a model, within one deadline.

    python -m examples.support_bot "How do I turn hedging off?"        in a terminal
    python -m examples.support_bot --page                              as a page that shows the channels
    stayfast serve --config examples/support_bot/stayfast.yaml         as the model `support-bot` of a gateway

Read `turn` first. `passages`, `words` and `meaning` are the retrieval, `desk` is the shared state.
"""
