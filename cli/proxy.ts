/** Finds the proxy through which the command reaches the HTTP API or an identity provider. */
import { messageOf } from '../base/errors.ts';
import { type ProxyEnvironment, Proxies, type Proxy } from '../base/proxy.ts';
import { CommandError, EXIT } from './errors.ts';

/**
 * Returns the proxy for requests to a URL, or undefined if its server is reached directly. @throws CommandError when a variable of the
 * environment names no HTTP proxy.
 */
export function proxyFor(url: string, environment: ProxyEnvironment): Proxy | undefined {
  try {
    return new Proxies(environment).proxyFor(new URL(url));
  } catch (error) {
    throw new CommandError(messageOf(error), EXIT.usage);
  }
}
