/** Values that a configuration file does not set, from the environment of the agent. All functions are pure. */

export type Environment = Readonly<Record<string, string | undefined>>;

/**
 * Adds the Node's name and address from the environment variables. Dots in the name become dashes: Kubernetes allows dots in a Node's name,
 * but Berth requires a DNS label.
 */
export function withEnvironment(document: unknown, environment: Environment): unknown {
  if (typeof document !== 'object' || Array.isArray(document)) {
    return document;
  }
  const { BERTH_NODE_NAME: name, BERTH_ADDRESS: host } = environment;
  return {
    ...(name === undefined ? {} : { nodeName: name.replaceAll('.', '-') }),
    ...(host === undefined ? {} : { address: host }),
    ...document,
  };
}

/**
 * Sets the default network driver `user` if the agent does not run as root, because the driver `nat` needs root. There is no
 * default for root: with `user`, guests can reach more than an administrator might expect.
 */
export function withDriver(document: unknown, isRoot: boolean): unknown {
  if (!isObject(document)) {
    return document;
  }
  const { network = {} } = document;
  return { ...document, network: isRoot || !isObject(network) ? network : { driver: 'user', ...network } };
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
