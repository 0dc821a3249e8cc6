"""The faulty upstream is tested itself: for every switch one test that reads the raw bytes it sends."""
