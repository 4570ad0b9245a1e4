"""F5, public: virtual time, scripted upstreams and recording sinks for tests of anything built on Stayfast."""
