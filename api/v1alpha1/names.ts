/** Names that users and other programs see: the API group, labels, annotations, finalizers, taints, resources and conditions. */
export const GROUP = 'berth.dev';
export const API_VERSION = `${GROUP}/v1alpha1`;

/**
 * Key of a label and of a taint on every host's Node, for selectors and people. The label does not prove that a Node is a host, because any
 * kubelet can set the label on its own Node. Only {@link HOST_MARK} proves that a Node is a host.
 */
export const HOST_KEY = 'berth.dev/host';
export const HOST_VALUE = 'true';
/**
 * The label that makes a Node a host. Its value is {@link HOST_VALUE}. The admission plugin NodeRestriction prevents a kubelet from setting
 * this label on its own Node. The operator sets the label if it approved a certificate for the Node's name. An administrator can set the
 * label, too.
 */
export const HOST_MARK = 'berth.node-restriction.kubernetes.io/host';
const HOST_NAME_MAXIMUM = 63;
const HOST_NAME = /^[a-z0-9]([a-z0-9-]*[a-z0-9])?$/;
/**
 * Longest lifetime of a host's first certificate, in seconds. It is short, because the host renews the certificate as soon as its Node
 * exists.
 */
export const FIRST_CERTIFICATE_SECONDS = 3_600;
/**
 * Name by which the API server knows the agent. It is the field manager of the fields that the agent applies, and the user agent of the
 * agent's requests.
 */
export const AGENT_NAME = 'berth-agent';
/**
 * Largest number of hosts that one ImageCacheEntry can name. A status with so many hosts stays below etcd's limit of 1.5 MB if the names of
 * the hosts have usual lengths.
 */
export const CACHE_NODES_LIMIT = 4096;
/** Label of the one Pod of the operator that is the leader. No other Pod has this label. */
export const LEADER_LABEL = 'berth.dev/leader';
/** Prefix of the labels for a host's tags: `tag.berth.dev/<tag>`. */
export const TAG_LABEL_PREFIX = 'tag.berth.dev/';
/** Taint of a host whose NAT could not be repaired. */
export const NAT_TAINT = 'berth.dev/nat-unready';
/**
 * Key of the label and taint of a host that is dedicated to one namespace. Administrators and the HTTP API set the label. An agent can set it
 * only together with {@link ONLY_NAMESPACE_LABEL}.
 */
export const DEDICATED_KEY = 'berth.node-restriction.kubernetes.io/namespace';
/**
 * Label of a Namespace. With the value `Strict`, VMs of the namespace run only on hosts that are dedicated to it. With the value `Shared`,
 * they also run on hosts that are dedicated to no namespace. Without the label, a namespace with hosts of its own counts as `Strict`.
 */
export const DEDICATION_LABEL = 'berth.dev/dedication';
/** Label of a host that sees only the Pods of one namespace, because it joined without a certificate. Its value is the namespace. */
export const ONLY_NAMESPACE_LABEL = 'berth.dev/only-namespace';

/** Extended resources of a Node. */
export const SLOT_RESOURCE = 'berth.dev/slot';
export const MACOS_GUEST_RESOURCE = 'berth.dev/macos-guest';
export const SHARED_DISK_RESOURCE = 'berth.dev/shared-disk';
/**
 * Name of the driver that runs guests with macOS. The runtime version of a Node, `DRIVER://ACCELERATOR`, names the driver of the host.
 */
export const MACOS_DRIVER = 'tart';
/** Accelerator of that driver: the hypervisor of macOS. Guests on it have the serial number and the hardware UUID of their image. */
export const MACOS_ACCELERATOR = 'vz';
/** Largest number of slots that the configuration of the operator can give to a host. */
export const SLOTS_MAXIMUM = 1000;

/** Annotations with which the operator sends data to the agent. */
export const MACHINE_ANNOTATION = 'berth.dev/machine';
export const DESIRED_ANNOTATION = 'berth.dev/desired';

/**
 * Annotation of the Pods of machines and tasks. It lists the servers that the Pod may use without TLS, or without a check of the
 * certificate. `insecureServersText` in registrycredentials.ts makes the text of this list. An agent that does not know the annotation uses
 * TLS and checks the certificate.
 */
export const INSECURE_SERVERS_ANNOTATION = 'berth.dev/insecure-servers';

/** Annotation of the Pods of Jobs. It contains the description of a task for the agent as JSON. A task is work on an image. */
export const TASK_ANNOTATION = 'berth.dev/task';

/** Name of VMs for which nobody chose a name. A hyphen and a generated part follow. */
export const DEFAULT_VM_NAME = 'vm';

export const VM_UID_LABEL = 'berth.dev/vm-uid';
/**
 * Label of Jobs and their Pods. Its value is the uid of the task's Image or ISO. The value is not a name, because a later object can have
 * the same name, but never the same uid.
 */
export const IMAGE_UID_LABEL = 'berth.dev/image-uid';
/** Label of Jobs and their Pods. Its value is the operation on the image, for example `pull` or `download`. */
export const OPERATION_LABEL = 'berth.dev/operation';
/** Label of the Pod of an Emulator. Its value is the uid of the Emulator. Such a Pod does not have the label {@link VM_UID_LABEL}. */
export const EMULATOR_UID_LABEL = 'berth.dev/emulator-uid';
/**
 * Label with the type of work: `vm`, `emulator`, `cache` (Jobs of an ImageCacheEntry) or `image` (Jobs of an Image or ISO). The value `guard`
 * is for the Pod that keeps Pods of other programs away from hosts. It does no work.
 */
export const WORKLOAD_LABEL = 'berth.dev/workload';

/**
 * Finalizer of a VM or an Emulator. The operator removes this finalizer last, after it has removed everything that belongs to the object.
 */
export const VM_FINALIZER = 'berth.dev/machine';
/**
 * Finalizer of a machine's Pod. It stays until the operator has copied the Pod's facts to the VM's status. Without this finalizer, a Pod
 * could run and disappear, and the operator would not see it.
 */
export const POD_FINALIZER = 'berth.dev/observed';
/** Finalizer of every ImageCacheEntry for which hosts keep an image. It stays until no host keeps the image for the entry. */
export const CACHE_FINALIZER = 'berth.dev/image-cache';

/** Name of the only container of a machine's Pod. */
export const MACHINE_CONTAINER = 'machine';

/** Port of a machine's Pod that leads to the screen. A connection to this port never reaches the guest's port of the same number. */
export const SCREEN_PORT = 5999;
export const SCREEN_PORT_NAME = 'vnc';

/** Port of an emulator's ADB in the network namespace of the emulator. */
export const ADB_PORT = 5555;

/**
 * Returns the name of an emulator's Pod. It contains a dot, so it differs from the names of all Pods of VMs, because names of VMs have no
 * dots.
 */
export function emulatorPodName(emulatorName: string): string {
  return `${emulatorName}.emulator`;
}

/** Name of the only container in the Pod of a Job that works on an image. */
export const TASK_CONTAINER = 'task';

/** Types of conditions that the agent writes to Pods and Nodes. */
export const MACHINE_CONDITION = 'berth.dev/Machine';
export const TASK_CONDITION = 'berth.dev/Task';
export const NETWORK_CONDITION = 'berth.dev/Network';
/**
 * Condition of a machine's Pod. It exists only while the host's disk is full and the machine is therefore paused or cannot be suspended.
 * Its status is False, and its reason is {@link HOST_DISK_FULL} or {@link NO_ROOM_TO_SUSPEND}.
 */
export const DISK_CONDITION = 'berth.dev/Disk';
/** Reason of the condition `berth.dev/Disk`: the machine is paused, because its disk had to grow while the host's disk was full. */
export const HOST_DISK_FULL = 'HostDiskFull';
/**
 * Reason of the condition `berth.dev/Disk`: the machine could not be suspended and still runs, because the host's disk has no space for the
 * machine's memory.
 */
export const NO_ROOM_TO_SUSPEND = 'NoRoomToSuspend';
/**
 * Condition of a machine's Pod. Its status tells whether the guest has got its user data. The condition is absent for a machine without
 * user data. It is also absent until the host first tries to give the data to the guest.
 */
export const USER_DATA_CONDITION = 'berth.dev/UserData';
/**
 * Condition of a machine's Pod. Its status tells whether the machine started from the memory of its image, or of the snapshot to which it was
 * reset. The condition is absent if they have no memory. Its reason is a {@link WarmStartReason}.
 */
export const WARM_START_CONDITION = 'berth.dev/WarmStart';
/**
 * Condition of a machine's Pod. Its message is a JSON list with one entry for each snapshot that the host has taken, or could not take. The
 * condition is absent until the host gets the first snapshot to take.
 */
export const SNAPSHOTS_CONDITION = 'berth.dev/Snapshots';
/**
 * Condition of a machine's Pod. It is False if the host has given up the merge of layers that removed snapshots have left. Otherwise the
 * condition is absent.
 */
export const LAYERS_CONDITION = 'berth.dev/Layers';
/**
 * Largest number of snapshots of one VM. Each is a layer under the disk of the VM, and the hypervisor asks the layers one after the other for
 * old content.
 */
export const SNAPSHOT_LIMIT = 16;
/**
 * Reasons of the condition `berth.dev/WarmStart`. `Renewed` belongs to the status True, and all others to False.
 * @public
 */
export type WarmStartReason =
  | 'Renewed'
  | 'ColdWanted'
  | 'KeyDiffers'
  | 'SizeDiffers'
  | 'NotSupported'
  | 'RenewalFailed'
  | 'MemoryNotTrusted';
/**
 * Condition that the agent writes to its Node: whether the host can run emulators. If the status is False, the message gives the reason.
 * Simulated hosts do not have the condition. For a host without the condition, the operator does not check whether the host can run
 * emulators.
 */
export const EMULATORS_CONDITION = 'berth.dev/Emulators';
/**
 * Prefix of the labels with which the agent lists the system images for emulators on its host. After the prefix comes
 * `<platform>.<imageType>`, for example `emulator.berth.dev/android-36.google_apis`. The images have the architecture of the host.
 */
export const SYSTEM_IMAGE_LABEL_PREFIX = 'emulator.berth.dev/';
export const NAT_READY_CONDITION = 'berth.dev/NATReady';
/** Condition that the operator writes to a host's Node if the agent is too many releases older or newer than the operator. */
export const VERSION_SKEW_CONDITION = 'berth.dev/VersionSkew';

/** Type of the Secret with a VM's VNC password. The operator creates the Secret, but has no right to read it. */
export const VNC_SECRET_TYPE = 'berth.dev/vnc';
/** The only key of the Secret with a VM's VNC password. */
export const VNC_SECRET_KEY = 'password';

/** Returns the name of the Secret with the VNC password of a VM. */
export function vncSecretName(vmName: string): string {
  return `${vmName}-vnc`;
}

/** Annotation of a Node that the operator cordoned before it switches off the host. It names the Server. */
export const CORDONED_FOR_ANNOTATION = 'berth.dev/cordoned-for';

/**
 * Annotation of an unreachable host's Node: a JSON list of MAC addresses. The operator has recorded the machines with these addresses as
 * lost, but these machines might still run on the host.
 */
export const GIVEN_UP_ANNOTATION = 'berth.dev/given-up';

/**
 * Annotation of a host's Node. It lists the VMs whose machines get a new Pod: see awaited.ts. The host keeps such a machine although it has
 * no Pod at the moment.
 */
export const AWAITED_ANNOTATION = 'berth.dev/awaited-pods';
/** Taint of a host while machines on it get new Pods. It keeps other VMs from the slots and ports of these machines. */
export const ADOPTING_TAINT = 'berth.dev/adopting';
/**
 * Annotation of a VM's Pod that continues the VM after an earlier Pod was deleted by force. Its value is the uid of that earlier Pod. The
 * host takes over the machine of the VM, and never creates a new one for such a Pod.
 */
export const ADOPTS_ANNOTATION = 'berth.dev/adopts';
/** ConfigMap in the operator's namespace with what the operator keeps of each host's Node. */
export const HOST_RECORDS = 'berth-host-records';
/**
 * Beginning of a key in the ConfigMap {@link HOST_RECORDS}. The rest of the key is the name of a host that is gone for good. No name of a
 * Node contains an underscore.
 */
export const GIVE_UP_PREFIX = 'give-up_';
/** ConfigMap in the operator's namespace with the Pods that continue VMs. A Pod is there until it is created. */
export const ADOPTIONS = 'berth-adoptions';
/** ConfigMap in the operator's namespace with the times of jobs in the last hours. It has one key for each namespace. */
export const JOB_TIMES = 'berth-job-times';

/**
 * Annotation of an object. Its value is the name of the user who created the object. An admission policy lets users write only their own
 * name, and refuses every later change of the annotation.
 */
export const CREATED_BY_ANNOTATION = 'berth.dev/created-by';

/** Label of the VMs that a VMPool keeps ready. Its value is the name of the VMPool. A claim removes it. */
export const POOL_LABEL = 'berth.dev/pool';
/** Label of a VM that a VMPool made. Its value is the revision of the pool's template and image from which the VM was made. */
export const POOL_REVISION_LABEL = 'berth.dev/pool-revision';
/** Label of a VM that somebody claimed from a VMPool. Its value is the name of the VMPool. */
export const CLAIMED_FROM_LABEL = 'berth.dev/claimed-from';
/**
 * Annotation of a claimed VM. Its value is the name of the user who claimed the VM. An admission policy lets users write only their own
 * name, and only in the request that takes the VM out of its pool.
 */
export const CLAIMED_BY_ANNOTATION = 'berth.dev/claimed-by';

/** Label of a VM. Its value is the name of the scale set of runners to which the VM belongs. Metrics count the VMs of each scale set. */
export const SCALE_SET_LABEL = 'berth.dev/scale-set';

export const SYSTEM_NAMESPACE = 'berth-system';
/**
 * Name of the Secret with which hosts write to the registry of the image storage and delete there. A host first reads the one in the
 * namespace of its task, and without it the one in the system namespace. It is used for no pull of an image.
 */
export const STORAGE_SECRET = 'berth-image-storage';
/** RoleBinding in the system namespace of the role of the same name. The hosts with a task that writes may read {@link STORAGE_SECRET}. */
export const STORAGE_WRITERS = 'berth-image-storage-writers';
/**
 * ConfigMap in the system namespace with the facts about the installation that every user may read. The operator writes it, because the
 * facts are in its configuration.
 */
export const CLUSTER_INFO = 'berth-cluster-info';
/** Key in {@link CLUSTER_INFO}. Its value is `true` or `false`. */
export const HAS_IMAGE_STORAGE = 'hasImageStorage';
/** Message about work that needs an image storage, in a cluster that has none. */
export const NO_IMAGE_STORAGE =
  'There is no image storage. Set imageStorage in the configuration of the operator';
export const DEFAULT_NAMESPACE = 'platform-default';
export const NAMESPACE_PREFIX = 'platform-';

/** Names of the namespaces that Berth serves, and of its own namespace. */
export interface ServedNamespaces {
  readonly default: string;
  /** Prefix of the names of all others. */
  readonly prefix: string;
  readonly system: string;
}

/** The names without a configuration. The command uses them. */
export const SERVED_NAMESPACES: ServedNamespaces = {
  default: DEFAULT_NAMESPACE,
  prefix: NAMESPACE_PREFIX,
  system: SYSTEM_NAMESPACE,
};

/**
 * Reports whether Berth handles the VMs of a namespace, with all objects that belong to these VMs. The system namespace is never served. Users
 * get rights in served namespaces, and users with rights in the system namespace could act as the operator.
 */
export function isServedNamespace(name: string, namespaces: ServedNamespaces): boolean {
  return name !== namespaces.system && (name === namespaces.default || name.startsWith(namespaces.prefix));
}

/** ClusterRoles that the operator binds in every served namespace. Each RoleBinding has the name of its role. */
export const DEV_ROLE = 'berth-role-dev';
export const ADMIN_ROLE = 'berth-role-admin';
/** Label of a served namespace. If its value is {@link UNMANAGED}, the operator does not change the RoleBindings in the namespace. */
export const ROLE_BINDINGS_LABEL = 'berth.dev/role-bindings';
export const UNMANAGED = 'unmanaged';
/** Label of a served namespace. If its value is `true`, users are allowed to have Pods in the namespace. */
export const CUSTOM_PODS_LABEL = 'berth.dev/custom-pods';
/**
 * Annotation of a RoleBinding that the operator manages: a JSON list of the groups that the operator added from its configuration. When a
 * group is no longer in the configuration, the operator removes the group from the RoleBinding. The operator never changes other subjects
 * of the RoleBinding.
 */
export const ROLE_GROUPS_ANNOTATION = 'berth.dev/role-groups';

/** Group of all bootstrap tokens with which hosts join the cluster. Members of this group are allowed to request a certificate. */
export const BOOTSTRAP_GROUP = 'system:bootstrappers:berth';

/** Returns the group of a bootstrap token with which only this host can join. */
export function bootstrapGroupOf(hostName: string): string {
  return `${BOOTSTRAP_GROUP}:${hostName}`;
}

/** Form of the name of a signer of certificates. It has no quotation marks, because an admission policy contains the name. */
export const SIGNER_NAME = /^[a-z0-9.-]{1,253}\/[a-zA-Z0-9._:-]{1,253}$/;

/**
 * Reports whether a host can have this name. The name must be a lower-case DNS label, because labels and file names contain it unchanged.
 */
export function isHostName(name: string): boolean {
  return name.length <= HOST_NAME_MAXIMUM && HOST_NAME.test(name);
}

/** Checks names. Names of most Kubernetes objects are RFC 1123 subdomains. */
export const SUBDOMAIN = /^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$/;
export const OBJECT_NAME_LENGTH = 253;
/** Longest name of a new image. */
export const NEW_IMAGE_NAME_LENGTH = 63;

/** Reports whether this name is valid for the objects of most kinds. */
export function isObjectName(name: string): boolean {
  return name.length <= OBJECT_NAME_LENGTH && SUBDOMAIN.test(name);
}

/** Pattern of a tag, which is the name part of a label key: letters, digits, dashes, dots and underscores. */
export const TAG = /^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$/;
/** Longest tag in characters. Kubernetes has this limit for the name part of a label key. */
export const TAG_LENGTH = 63;
/** Message about a wrong tag. The message follows the name of the field. */
export const TAG_FORM = `must be 1 to ${TAG_LENGTH} letters, digits, "-", "_" and ".", with a letter or digit at both ends`;

export function isTag(text: string): boolean {
  return text.length <= TAG_LENGTH && TAG.test(text);
}

/**
 * Command of `kubectl exec` for which the host writes a picture of the screen (PNG) to the standard output. The guest takes no part in it. The
 * colon keeps the word apart from programs of guests.
 */
export const SCREENSHOT_COMMAND = 'berth:screenshot';
/** Largest picture of a screen in bytes. It is more than that of a screen of 3840×2160 random pixels. */
export const SCREENSHOT_BYTES = 32 * 1024 * 1024;

/**
 * Escape character of consoles, Ctrl+], with which the user leaves. kubectl has no such key, so the agent looks for it too. The command does
 * not rely on the agent, because the user must be able to leave even when the connection hangs.
 */
export const CONSOLE_ESCAPE = 0x1d;
/**
 * Largest length of user data from a Secret, in bytes. This limit is higher than the limit of `userData`, because no annotation contains
 * user data from a Secret. There is a limit, because the agent keeps the user data in memory while it makes the disk of the guest.
 */
export const SECRET_USER_DATA_BYTES = 64 * 1024;
/**
 * Type of the Secrets whose values a guest may get. A Secret of another type could be a password of somebody else, and users who may create
 * VMs need no right to Secrets. The API server never changes the type of a Secret.
 */
export const USER_DATA_SECRET_TYPE = 'berth.dev/user-data';
/**
 * Type of the Secrets with credentials for GitHub. A Secret of another type could be a password of somebody else, and users who may create
 * RunnerSets need no right to Secrets.
 */
export const GITHUB_SECRET_TYPE = 'berth.dev/github';
