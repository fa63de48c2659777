/** Reasons in the conditions and Events of RunnerSets. */
const CONNECTION = { RunnerSet: ['Connected', 'Ready', 'Stalled', 'Reconciling'] } as const;
const READY = { RunnerSet: ['Ready', 'Reconciling'] } as const;
const EVENT = { RunnerSet: ['Event'] } as const;

export const RUNNER_REASONS = {
  SessionOpen: {
    seen: { RunnerSet: ['Connected'] },
    class: 'state',
    by: 'runners',
    says: 'GitHub sends the news of the scale set to Berth',
  },
  SessionNotOpenYet: {
    seen: CONNECTION,
    class: 'state',
    by: 'runners',
    says: 'Berth has not opened the message session of the scale set yet',
  },
  SessionConflict: {
    seen: CONNECTION,
    class: 'passing',
    by: 'runners',
    says: 'Another program has the message session of the scale set',
    todo: 'End the other program, or give this RunnerSet another github.name. The session of a killed program ends by itself after minutes',
  },
  Unauthorized: {
    seen: CONNECTION,
    class: 'mendable',
    by: 'runners',
    says: 'GitHub refused the credentials',
    todo: 'Correct the Secret that github.credentialSecret names, and check its rights to self-hosted runners at GitHub',
  },
  RateLimited: {
    seen: CONNECTION,
    class: 'passing',
    by: 'runners',
    says: 'GitHub refuses further requests with these credentials for a time',
  },
  GitHubUnreachable: {
    seen: CONNECTION,
    class: 'passing',
    by: 'runners',
    says: 'GitHub does not answer',
    todo: 'Check github.url, and the network between berth-runners and GitHub',
  },
  GitHubFailed: {
    seen: CONNECTION,
    class: 'passing',
    by: 'runners',
    says: 'GitHub answers with an error, or its answer is not valid',
    todo: 'Read the message',
  },
  GitHubAddressRefused: {
    seen: CONNECTION,
    class: 'mendable',
    by: 'runners',
    says: 'The server in github.url, or a server that it names, has an address of a private network',
    todo: 'An administrator can name the server in the chart value runners.privateServers',
  },
  GitHubCertificateRefused: {
    seen: CONNECTION,
    class: 'mendable',
    by: 'runners',
    says: 'Berth does not trust the certificate of the server in github.url',
    todo: 'Set github.caSecret, or give the server a certificate of a public authority',
  },
  CredentialSecretRefused: {
    seen: CONNECTION,
    class: 'mendable',
    by: 'runners',
    says: 'A Secret that the RunnerSet names is missing or not usable',
    todo: 'Create the Secret as the page about runners for GitHub says, and list its name in the chart value runners.namespaces',
  },
  RunnerGroupNotFound: {
    seen: CONNECTION,
    class: 'mendable',
    by: 'runners',
    says: 'GitHub knows no runner group of this name',
    todo: 'Correct github.runnerGroup, or give the credentials the right to the group',
  },
  LabelsDiffer: {
    seen: CONNECTION,
    class: 'mendable',
    by: 'runners',
    says: 'The scale set exists at GitHub and has other labels',
    todo: 'Delete the scale set at GitHub, or give this RunnerSet the labels in the message or another github.name',
  },
  RunnersReady: {
    seen: { RunnerSet: ['Ready'] },
    class: 'state',
    by: 'runners',
    says: 'All wanted VMs are Ready',
  },
  RunnersStarting: {
    seen: READY,
    class: 'state',
    by: 'runners',
    says: 'Not all wanted VMs are Ready yet',
  },
  RunnerSourceUnseen: {
    seen: { RunnerSet: ['Ready', 'Stalled'] },
    class: 'mendable',
    by: 'runners',
    says: 'The RunnerSet gets no jobs. An object that it names can be in the default namespace, which berth-runners does not see',
    todo: 'Add the default namespace to the chart value runners.namespaces, or correct the name',
  },
  RunnerVMRefused: {
    seen: { RunnerSet: ['Ready', 'Reconciling', 'Event'] },
    class: 'mendable',
    by: 'runners',
    says: 'The API server refused a VM of the set',
    todo: 'Read the message. Often a quota of the namespace is used up',
  },
  RunnerVMFailed: {
    seen: { RunnerSet: ['Ready', 'Stalled', 'Event'] },
    class: 'mendable',
    by: 'runners',
    says: 'A VM of the set failed before its guest ran. Berth tries again with one VM, after 5 minutes at most',
    todo: 'Read the message. Correct the image, the VMConfig or the template of the RunnerSet',
  },
  RunnerRemoved: {
    seen: EVENT,
    class: 'state',
    by: 'runners',
    says: 'Berth deleted a VM of the set, because it cannot or need not take a job. The message says why',
  },
  RunnerNotOnline: {
    seen: EVENT,
    class: 'mendable',
    by: 'runners',
    says: 'The runner of a Ready VM did not come online in time, so Berth deleted the VM',
    todo: 'Check that the image starts the runner with the JIT configuration in its user data. Look at the console of the next VM',
  },
} as const;
