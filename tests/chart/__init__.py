"""What helm makes of the chart, without a cluster."""
