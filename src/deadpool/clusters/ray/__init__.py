"""Jobs on a Ray cluster: agents are actors, one per Ray node, and coordinators run beside the driver."""
