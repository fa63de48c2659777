/** Owner of the fields that the agent applies, on Nodes, Leases and Pods alike. */
export const FIELD_MANAGER = 'berth-agent';
/** In Events: who reports. */
export const REPORTING_CONTROLLER = 'berth.dev/agent';
/** The agent's own version. */
export const AGENT_VERSION = '0.1.0';
