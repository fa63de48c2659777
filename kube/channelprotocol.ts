/**
 * The protocols with channels over WebSockets to Pods, for `exec`, `attach` and `portforward`. The first byte of each message is the number of
 * its channel.
 */

/** WebSocket protocol for commands. Earlier versions of this protocol cannot signal the end of the input. */
export const COMMAND_PROTOCOL = 'v5.channel.k8s.io';
/** WebSocket protocol for connections to ports. A kubelet uses the same one. */
export const PORT_PROTOCOL = 'v4.channel.k8s.io';
/** Numbers of the channels of a command. */
export const COMMAND_CHANNEL = { stdin: 0, stdout: 1, stderr: 2, status: 3, size: 4 } as const;
/** Numbers of the channels of a connection to one port. */
export const PORT_CHANNEL = { data: 0, error: 1 } as const;
/** Number of a special channel of the command protocol. A message on this channel says that another channel has ended. */
export const END_CHANNEL = 255;
/**
 * Largest number of parts of one message. A part keeps the whole piece of the connection in memory from which it came, however short the part
 * is. Agents send each message in one part, and browsers in a few.
 */
export const MESSAGE_PARTS = 8;
