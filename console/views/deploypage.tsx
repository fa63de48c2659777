/** The form for a new VM. */
import { useEffect, useState } from 'preact/hooks';
import type { VMDetails, VMItem } from '../../api/http/vm.ts';
import type { Api } from '../data/api.ts';
import { messageOf } from '../data/forms.ts';
import { type FormField, type Texts, textsOf } from '../model/form.ts';
import { formatPlace, type Place } from '../model/place.ts';
import { type FormSection, SchemaForm, type Suggestions, WithFields } from './form.tsx';

interface DeployPageProps {
  readonly api: Api;
  readonly namespace: string;
  /** Name of a VM whose values the form has at first. */
  readonly like: string | undefined;
}

/** Sections of the form. A field that no section names is in the last one. */
const SECTIONS: readonly FormSection[] = [
  {
    title: 'Machine',
    names: ['name', 'image', 'iso', 'vmConfig', 'cpu', 'memory', 'diskSize', 'labels'],
    isOpen: true,
  },
  { title: 'Host', names: ['architecture', 'node', 'tag', 'tagRequired', 'scheduler'] },
  {
    title: 'Guest',
    names: ['sshAuthorizedKeys', 'userData', 'userDataSecretRef', 'vmMetadata', 'readiness', 'systemSerial'],
  },
  {
    title: 'Screen and ports',
    names: ['displayWidth', 'displayHeight', 'displayDPI', 'vncConsole', 'vncHostPort', 'reservedPorts'],
  },
  { title: 'Life', names: ['timeout', 'aliveUntil', 'activeDeadlineSeconds', 'ttlSecondsAfterFinished'] },
  { title: 'More', names: ['shouldGenerateName', 'start'] },
];

export function DeployPage({ api, namespace, like }: DeployPageProps) {
  const suggestions = useSuggestions(api, namespace);
  const { values, error } = useValues(api, namespace, like);
  const path = `/api/v1/namespaces/${encodeURIComponent(namespace)}/vms`;
  const deploy = async (given: Record<string, unknown>) => {
    const { name } = await api.send<VMItem>('POST', `${path}?wait=false`, given);
    location.hash = formatPlace({ page: 'vm', namespace, name });
  };
  return (
    <div class="details deploy">
      <header>
        <h1>
          Deploy a VM <span class="in">in namespace {namespace}</span>
        </h1>
      </header>
      {error === undefined ? null : (
        <p class="stale">
          The values of VM {like} could not be read: {error}
        </p>
      )}
      <WithFields api={api} form="deploy">
        {(fields) =>
          values === undefined ? (
            <p class="loading" role="status">
              Reading VM {like}…
            </p>
          ) : (
            <SchemaForm
              fields={fields}
              sections={SECTIONS}
              initial={initialTexts(fields, values)}
              suggestions={suggestions}
              submit="Deploy"
              busy="Deploying…"
              onSubmit={deploy}
            />
          )
        }
      </WithFields>
    </div>
  );
}

/** Returns the texts of another VM without its name, because a namespace has one VM of each name. */
function initialTexts(
  fields: readonly FormField[],
  { name: _name, ...values }: Partial<VMDetails['request']>,
): Texts {
  return textsOf(fields, values);
}

type Values = Partial<VMDetails['request']>;

/** Reads the values of the other VM. They are undefined until then. Without another VM, or if it cannot be read, there are none. */
function useValues(
  api: Api,
  namespace: string,
  like: string | undefined,
): { readonly values: Values | undefined; readonly error: string | undefined } {
  const [read, setRead] = useState<{ values?: Values; error?: string }>(
    like === undefined ? { values: {} } : {},
  );
  useEffect(() => {
    if (like === undefined) {
      return undefined;
    }
    const end = new AbortController();
    const path = `/api/v1/namespaces/${encodeURIComponent(namespace)}/vms/${encodeURIComponent(like)}`;
    api.get<VMDetails>(path, end.signal).then(
      ({ request }) => setRead({ values: request }),
      (error: unknown) => {
        if (!end.signal.aborted) {
          setRead({ values: {}, error: messageOf(error) });
        }
      },
    );
    return () => end.abort();
  }, [api, namespace, like]);
  return { values: read.values, error: read.error };
}

/** Fields for which names are suggested, with the lists of the HTTP API that have them. */
const SUGGESTED: Readonly<Record<string, string>> = {
  image: 'images',
  iso: 'isos',
  vmConfig: 'vmconfigs',
  node: 'nodes',
};

/** Reads the names that exist. A list that the user may not read suggests nothing, and the field takes any name. */
function useSuggestions(api: Api, namespace: string): Suggestions {
  const [suggestions, setSuggestions] = useState<Suggestions>({});
  useEffect(() => {
    const end = new AbortController();
    const scope = `/api/v1/namespaces/${encodeURIComponent(namespace)}`;
    for (const [field, list] of Object.entries(SUGGESTED)) {
      api.get<{ items: { name: string }[] }>(`${scope}/${list}`, end.signal).then(
        ({ items }) => setSuggestions((others) => ({ ...others, [field]: items.map(({ name }) => name) })),
        () => undefined,
      );
    }
    return () => end.abort();
  }, [api, namespace]);
  return suggestions;
}

/** Returns the address of the form. */
export function deployAddress(namespace: string | undefined, like?: string): string {
  const place: Place = { page: 'deploy', namespace, ...(like !== undefined && { like }) };
  return formatPlace(place);
}
