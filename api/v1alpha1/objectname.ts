/** Checks names. Names of most Kubernetes objects are RFC 1123 subdomains. */
export const SUBDOMAIN = /^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$/;
export const OBJECT_NAME_LENGTH = 253;

/** Reports whether an object of most kinds can have this name. */
export function isObjectName(name: string): boolean {
  return name.length <= OBJECT_NAME_LENGTH && SUBDOMAIN.test(name);
}
