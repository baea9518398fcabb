"""Processes and HTTP of `bulkhead trt launch`: one `trtllm-serve`, started, watched, restarted."""
