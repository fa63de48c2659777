/** Types of Kubernetes objects. The objects are plain JSON from the API server, and have no additional fields or methods. */

/**
 * The fields of `metadata` that Berth uses. Times are RFC 3339 text. `managedFields` is missing, because it is removed before the parsing.
 */
export interface ObjectMeta {
  name: string;
  namespace?: string;
  generateName?: string;
  uid?: string;
  resourceVersion?: string;
  generation?: number;
  creationTimestamp?: string;
  deletionTimestamp?: string;
  deletionGracePeriodSeconds?: number;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
  finalizers?: string[];
  ownerReferences?: OwnerReference[];
}

export interface OwnerReference {
  apiVersion: string;
  kind: string;
  name: string;
  uid: string;
  controller?: boolean;
  blockOwnerDeletion?: boolean;
}

export interface KubeObject {
  apiVersion: string;
  kind: string;
  metadata: ObjectMeta;
}

/** `metav1.Condition`. A list of conditions contains each `type` at most once. */
export interface Condition {
  type: string;
  status: 'True' | 'False' | 'Unknown';
  reason: string;
  message: string;
  lastTransitionTime: string;
  observedGeneration?: number;
}

/**
 * Resource type of Kubernetes. `plural` is the type's name in URLs. `T` is the TypeScript type of its objects. The field `example` is never
 * set. It exists only so that TypeScript can infer `T` from a resource.
 */
export interface Resource<T extends KubeObject> {
  readonly apiVersion: string;
  readonly kind: string;
  readonly plural: string;
  readonly namespaced: boolean;
  readonly example?: T;
}

/** Object that is about to be created. The server adds the missing fields. `name` can be absent if `generateName` is set. */
export type Unsaved<T extends KubeObject> = Omit<T, 'apiVersion' | 'kind' | 'metadata'> & {
  apiVersion?: string;
  kind?: string;
  metadata: Partial<ObjectMeta>;
};

export interface Ref {
  namespace?: string;
  name: string;
}

/** Returns the type of objects that belong to a namespace. `T` is the TypeScript type of the objects. */
export function namespaced<T extends KubeObject>(
  apiVersion: string,
  kind: string,
  plural: string,
): Resource<T> {
  return { apiVersion, kind, plural, namespaced: true };
}

/** Returns the type of objects that belong to the whole cluster. `T` is the TypeScript type of the objects. */
export function clusterScoped<T extends KubeObject>(
  apiVersion: string,
  kind: string,
  plural: string,
): Resource<T> {
  return { apiVersion, kind, plural, namespaced: false };
}

/** Returns the key that caches and queues use for an object: `namespace/name`, or `name` for a cluster-scoped object. */
export function keyOf(object: { metadata: { name?: string; namespace?: string } }): string {
  const { namespace, name = '' } = object.metadata;
  return namespace === undefined ? name : `${namespace}/${name}`;
}

/** Returns the namespace and the name that a key from {@link keyOf} contains. */
export function refOf(key: string): Ref {
  const slash = key.indexOf('/');
  return slash < 0 ? { name: key } : { namespace: key.slice(0, slash), name: key.slice(slash + 1) };
}

/** Returns the URL path of all objects of a type, or of one object if the name is set. Names are escaped. */
export function pathOf<T extends KubeObject>(
  type: Resource<T>,
  ref: { namespace?: string; name?: string },
  subresource?: string,
): string {
  const root = type.apiVersion.includes('/') ? `/apis/${type.apiVersion}` : `/api/${type.apiVersion}`;
  const scope =
    type.namespaced && ref.namespace !== undefined ? `/namespaces/${encodeURIComponent(ref.namespace)}` : '';
  const name = ref.name === undefined ? '' : `/${encodeURIComponent(ref.name)}`;
  return `${root}${scope}/${type.plural}${name}${subresource === undefined ? '' : `/${subresource}`}`;
}

/**
 * Compares two resourceVersions of one type, which are comparable as integers (Kubernetes 1.35, KEP-5504). An empty text means that no
 * version was seen yet, and is lower than all others. The result is negative if `a` is lower, 0 if both are equal, and positive if `a` is
 * higher.
 */
export function compareResourceVersions(a: string, b: string): number {
  if (a.length !== b.length) {
    return a.length - b.length;
  }
  if (a === b) {
    return 0;
  }
  return a < b ? -1 : 1;
}

/** Returns true if the object was deleted without a grace period, as `kubectl delete --force` and the garbage collector of Pods do. */
export function isForced({ metadata }: Readonly<KubeObject>): boolean {
  return metadata.deletionTimestamp !== undefined && metadata.deletionGracePeriodSeconds === 0;
}

/** Returns a copy of the object with only these fields. Fields that the object does not have stay absent. */
export function keepFields<T extends object, Field extends keyof T>(
  object: T,
  fields: readonly Field[],
): Pick<T, Field> {
  const present = fields.filter((field) => object[field] !== undefined);
  return Object.fromEntries(present.map((field) => [field, object[field]])) as Pick<T, Field>;
}
