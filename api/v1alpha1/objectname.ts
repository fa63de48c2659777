/** Checks names. Names of most Kubernetes objects are RFC 1123 subdomains. */
export const SUBDOMAIN = /^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$/;
export const OBJECT_NAME_LENGTH = 253;
/** Longest name of a new image. */
export const IMAGE_NAME_LENGTH = 63;

/** Reports whether this name is valid for the objects of most kinds. */
export function isObjectName(name: string): boolean {
  return name.length <= OBJECT_NAME_LENGTH && SUBDOMAIN.test(name);
}
