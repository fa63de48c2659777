/** Accepts sessions in the protocol that the client asks for: SPDY/3.1, or WebSockets. */
import { HttpError } from '../../../kube/serving/httpserver.ts';
import type { Upgrade } from '../../../kube/serving/upgrades.ts';
import type { CommandSession, PortConnection, Session, SessionLimits, WantedStreams } from './session.ts';
import * as spdy from './spdy/sessions.ts';
import * as websocket from './websocket.ts';

/** @throws HttpError 400 when the agent does not know the protocol that the client asks for. */
function protocolOf({ request }: Upgrade): typeof spdy | typeof websocket {
  switch (request.headers.upgrade?.toLowerCase()) {
    case 'spdy/3.1':
      return spdy;
    case 'websocket':
      return websocket;
    default:
      throw new HttpError(400, 'The only upgrades are SPDY/3.1 and websocket');
  }
}

/**
 * Accepts a session for `exec` or `attach`. @throws HttpError 400 when the request is wrong, or when the client does not open the announced
 * streams.
 */
export async function acceptCommand(
  upgrade: Upgrade,
  wanted: WantedStreams,
  limits: SessionLimits,
): Promise<CommandSession> {
  return await protocolOf(upgrade).acceptCommand(upgrade, wanted, limits);
}

/** Accepts a session for connections to ports. @throws HttpError 400 when the request is wrong, or the client offers no known protocol. */
export function acceptPorts(
  upgrade: Upgrade,
  limits: SessionLimits,
  onConnection: (connection: PortConnection) => void,
): Session {
  return protocolOf(upgrade).acceptPorts(upgrade, limits, onConnection);
}
