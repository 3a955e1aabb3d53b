"""Reports: metrics from event logs, comparisons, plots and timelines. Reads logs only; drives nothing."""
