/**
 * Opens connections to image servers through a proxy. A server with TLS is reached through a tunnel (CONNECT). For a server without TLS,
 * the connection leads to the proxy itself and requests name the whole URL, because proxies usually allow tunnels to port 443 only.
 */
import { buildConnector } from 'undici';
import type { Proxy } from '../../../base/proxy.ts';
import { type ConnectOptions, tunnelConnector } from '../../../base/tunnel.ts';
import type { Addresses } from './addresses.ts';

/**
 * Returns a connector for undici. It checks each target by the rules of `addresses` before the proxy hears of it. `tls` has the TLS settings
 * of the servers.
 */
export function proxiedConnector(
  proxy: Proxy,
  addresses: Addresses,
  tls: ConnectOptions,
): buildConnector.connector {
  const throughTunnel = tunnelConnector(proxy, tls);
  const toProxy = buildConnector({ timeout: tls.timeout, allowH2: false });
  const { protocol, hostname, host, port } = proxy.origin;
  const connect = async (
    target: buildConnector.Options,
    callback: buildConnector.Callback,
  ): Promise<void> => {
    try {
      await addresses.checkBehindProxy(target);
    } catch (error) {
      callback(error as Error, null);
      return;
    }
    if (target.protocol === 'https:') {
      throughTunnel(target, callback);
    } else {
      toProxy({ protocol, hostname, host, port }, callback);
    }
  };
  return (target, callback) => void connect(target, callback);
}
