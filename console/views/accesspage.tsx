/** Who may use a namespace: its members, its service accounts, and new tokens of them. */
import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import type { TokenItem } from '../../api/http/serviceaccount.ts';
import { DEV_ROLE } from '../../api/v1alpha1/names.ts';
import type { Api } from '../data/api.ts';
import { freshnessAfter, type Freshness } from '../data/follow.ts';
import { messageOf } from '../data/forms.ts';
import type { FormField } from '../model/form.ts';
import { compareTexts } from '../model/texts.ts';
import { Confirm, Dialog } from './dialog.tsx';
import { SchemaForm, WithFields } from './form.tsx';
import { type ActionOutcome, OutcomeLine } from './outcome.tsx';
import { Notice, ReadState } from './states.tsx';

interface AccessPageProps {
  readonly api: Api;
  readonly namespace: string;
}

/** Member of the role dev. */
interface Subject {
  readonly kind: string;
  readonly name: string;
  readonly namespace?: string;
}

interface Access {
  readonly accounts: readonly string[];
  readonly members: readonly Subject[];
}

/** What the parts of the page need to act. */
interface AccessTools {
  readonly api: Api;
  /** Path of the namespace in the HTTP API. */
  readonly scope: string;
  readonly show: (dialog: ComponentChildren) => void;
  /** Does the work, reads the page again, and tells the outcome. */
  readonly act: (text: string, work: () => Promise<unknown>) => Promise<void>;
}

export function AccessPage({ api, namespace }: AccessPageProps) {
  const scope = `/api/v1/namespaces/${encodeURIComponent(namespace)}`;
  const { access, freshness, reload } = useAccess(api, scope);
  const [dialog, show] = useState<ComponentChildren>(null);
  const [outcome, tell] = useState<ActionOutcome>();
  const act = async (text: string, work: () => Promise<unknown>) => {
    try {
      await work();
      tell({ isError: false, text });
    } catch (error) {
      tell({ isError: true, text: messageOf(error) });
    }
    reload();
  };
  const tools: AccessTools = { api, scope, show, act };
  return (
    <div class="details">
      <header>
        <h1>
          Access <span class="in">to namespace {namespace}</span>
        </h1>
      </header>
      <OutcomeLine outcome={outcome} />
      {access === undefined ? (
        <NoAccess freshness={freshness} namespace={namespace} />
      ) : (
        <>
          <Accounts accounts={access.accounts} tools={tools} />
          <Members members={access.members} tools={tools} />
        </>
      )}
      {dialog}
    </div>
  );
}

function NoAccess({ freshness, namespace }: { readonly freshness: Freshness; readonly namespace: string }) {
  return freshness.state === 'refused' && freshness.status === 403 ? (
    <Notice title={`You do not manage namespace ${namespace}`}>
      <p>{freshness.message}</p>
      <p>
        Members and tokens need the role <code>admin</code> in the namespace. Ask an administrator for it, or
        for a token.
      </p>
    </Notice>
  ) : (
    <ReadState freshness={freshness} what="members" namespace={namespace} />
  );
}

function useAccess(
  api: Api,
  scope: string,
): { readonly access: Access | undefined; readonly freshness: Freshness; readonly reload: () => void } {
  const [access, setAccess] = useState<Access>();
  const [freshness, setFreshness] = useState<Freshness>({ state: 'loading' });
  const [round, setRound] = useState(0);
  useEffect(() => {
    const end = new AbortController();
    readAccess(api, scope, end.signal).then(
      (read) => {
        setAccess(read);
        setFreshness({ state: 'live' });
      },
      (error: unknown) => {
        if (!end.signal.aborted) {
          setFreshness(freshnessAfter(error));
        }
      },
    );
    return () => end.abort();
  }, [api, scope, round]);
  return { access, freshness, reload: () => setRound((count) => count + 1) };
}

async function readAccess(api: Api, scope: string, signal: AbortSignal): Promise<Access> {
  const [accounts, members] = await Promise.all([
    api.get<{ items: { name: string }[] }>(`${scope}/serviceaccounts`, signal),
    api.get<{ items: Subject[] }>(`${scope}/rolebindings/${DEV_ROLE}/subjects`, signal),
  ]);
  return {
    accounts: accounts.items.map(({ name }) => name).toSorted(compareTexts),
    members: members.items.toSorted((one, other) => compareTexts(one.name, other.name)),
  };
}

interface AccountsProps {
  readonly accounts: readonly string[];
  readonly tools: AccessTools;
}

function Accounts({ accounts, tools }: AccountsProps) {
  const { api, scope, show, act } = tools;
  const close = () => show(null);
  const pathOf = (name: string) => `${scope}/serviceaccounts/${encodeURIComponent(name)}`;
  const remove = (name: string) =>
    void act(`Service account ${name} was deleted`, async () => await api.send('DELETE', pathOf(name)));
  const askRemoval = (name: string) =>
    show(
      <Confirm
        title={`Delete service account ${name}?`}
        act="Delete"
        onAct={() => remove(name)}
        onClose={close}
      >
        <p>All its tokens become invalid at once, and programs that use them stop working.</p>
      </Confirm>,
    );
  const showToken = (name: string) =>
    show(<TokenDialog key={name} api={api} path={pathOf(name)} name={name} onClose={close} />);
  const created = (name: string) =>
    void act(`Service account ${name} was created`, async () => await Promise.resolve());
  return (
    <section aria-labelledby="accounts-title">
      <h2 id="accounts-title">Service accounts</h2>
      <p class="calm">
        For programs, and for people who cannot sign in at an identity provider. A new one has the role dev.
      </p>
      <table class="facts-table">
        <tbody>
          {accounts.map((name) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              <td class="row-actions">
                <button
                  type="button"
                  class="small"
                  aria-label={`New token of ${name}`}
                  onClick={() => showToken(name)}
                >
                  New token…
                </button>
                <button
                  type="button"
                  class="small danger"
                  aria-label={`Delete service account ${name}`}
                  onClick={() => askRemoval(name)}
                >
                  Delete…
                </button>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      <button
        type="button"
        onClick={() =>
          show(
            <NewAccountDialog
              api={api}
              path={`${scope}/serviceaccounts`}
              onCreated={created}
              onClose={close}
            />,
          )
        }
      >
        New service account…
      </button>
    </section>
  );
}

interface NameDialogProps {
  readonly title: string;
  readonly description: string;
  readonly submit: string;
  readonly onSubmit: (values: Record<string, unknown>) => Promise<void>;
  readonly onClose: () => void;
}

/** Returns the field of a name. The server checks it. */
function nameField(description: string): FormField {
  return {
    path: 'name',
    kind: 'text',
    description,
    isRequired: true,
    choices: [],
    minimum: undefined,
    maximum: undefined,
    length: NAME_LENGTH,
  };
}

/** Asks for a name. */
function NameDialog({ title, description, submit, onSubmit, onClose }: NameDialogProps) {
  const fields = [nameField(description)];
  return (
    <Dialog title={title} onClose={onClose}>
      <SchemaForm fields={fields} submit={submit} busy="Sending…" onSubmit={onSubmit} onCancel={onClose} />
    </Dialog>
  );
}

/** Longest name that the server takes, in characters: an address of email. */
const NAME_LENGTH = 320;

interface TokenDialogProps {
  readonly api: Api;
  /** Path of the service account. */
  readonly path: string;
  readonly name: string;
  readonly onClose: () => void;
}

/** Makes a token of an account, and shows it. */
function TokenDialog({ api, path, name, onClose }: TokenDialogProps) {
  const [made, setMade] = useState<TokenItem>();
  const create = async (body: Record<string, unknown>) =>
    setMade(await api.send<TokenItem>('POST', `${path}/token`, body));
  return made === undefined ? (
    <TokenForm
      api={api}
      title={`New token of ${name}`}
      before={[]}
      submit="Create"
      onSubmit={create}
      onClose={onClose}
    />
  ) : (
    <MadeToken name={name} item={made} onClose={onClose} />
  );
}

interface NewAccountDialogProps {
  readonly api: Api;
  /** Path of the service accounts. */
  readonly path: string;
  /** Called when the account was created, which is before its token is. */
  readonly onCreated: (name: string) => void;
  readonly onClose: () => void;
}

/** Makes an account with its first token, because an account is of no use without one. */
function NewAccountDialog({ api, path, onCreated, onClose }: NewAccountDialogProps) {
  const [made, setMade] = useState<{ readonly name: string; readonly item: TokenItem }>();
  const created = useRef<string | undefined>(undefined);
  const create = async ({ name: value, ...body }: Record<string, unknown>) => {
    const name = String(value);
    const own = `${path}/${encodeURIComponent(name)}`;
    // After a mistake in the fields of the token, the account is there already.
    if (created.current !== name) {
      await api.send('POST', own);
      created.current = name;
      onCreated(name);
    }
    setMade({ name, item: await api.send<TokenItem>('POST', `${own}/token`, body) });
  };
  return made === undefined ? (
    <TokenForm
      api={api}
      title="New service account"
      before={[nameField('Lower-case letters, digits and dashes.')]}
      submit="Create with a token"
      onSubmit={create}
      onClose={onClose}
    />
  ) : (
    <MadeToken {...made} onClose={onClose} />
  );
}

interface TokenFormProps {
  readonly api: Api;
  readonly title: string;
  /** Fields before those of the token. */
  readonly before: readonly FormField[];
  readonly submit: string;
  readonly onSubmit: (values: Record<string, unknown>) => Promise<void>;
  readonly onClose: () => void;
}

function TokenForm({ api, title, before, submit, onSubmit, onClose }: TokenFormProps) {
  return (
    <Dialog title={title} onClose={onClose}>
      <WithFields api={api} form="token">
        {(fields) => (
          <SchemaForm
            fields={[...before, ...fields]}
            initial={{ duration: TOKEN_LIFE }}
            submit={submit}
            busy="Creating…"
            onSubmit={onSubmit}
            onCancel={onClose}
          />
        )}
      </WithFields>
    </Dialog>
  );
}

interface MadeTokenProps {
  readonly name: string;
  readonly item: TokenItem;
  readonly onClose: () => void;
}

/** Shows a token until the dialog is closed. It is nowhere else in the page. */
function MadeToken({ name, item, onClose }: MadeTokenProps) {
  const { token, expirationTimestamp, message } = item;
  const [copied, setCopied] = useState<'copied' | 'failed'>();
  const text = useRef<HTMLTextAreaElement>(null);
  const copy = async () => {
    try {
      // Without TLS, browsers have no clipboard for pages.
      await navigator.clipboard.writeText(token);
      setCopied('copied');
    } catch {
      text.current?.select();
      setCopied('failed');
    }
  };
  return (
    <Dialog title={`Token of ${name}`} onClose={onClose}>
      <p>
        This is the only time that the token is shown. It is valid until{' '}
        {expirationTimestamp === undefined
          ? 'it is deleted'
          : new Date(expirationTimestamp).toLocaleString('en')}
        .
      </p>
      {message === undefined ? null : <p class="stale">{message}.</p>}
      <textarea class="token" readOnly rows={6} aria-label="Token" value={token} ref={text} />
      {copied === 'failed' ? (
        <p class="stale" role="status">
          The browser did not copy the token. It is selected: copy it with the keyboard.
        </p>
      ) : null}
      <div class="actions">
        <button type="button" onClick={() => void copy()}>
          {copied === 'copied' ? 'Copied' : 'Copy'}
        </button>
        <button type="button" class="primary" onClick={onClose}>
          Done
        </button>
      </div>
    </Dialog>
  );
}

/** Lifetime of a token that the form begins with: 30 days. */
const TOKEN_LIFE = '720h';

interface MembersProps {
  readonly members: readonly Subject[];
  readonly tools: AccessTools;
}

function Members({ members, tools }: MembersProps) {
  const { api, scope, show, act } = tools;
  const close = () => show(null);
  const path = `${scope}/rolebindings/${DEV_ROLE}/subjects`;
  const remove = (subject: Subject) =>
    void act(
      `${subject.name} lost the role dev`,
      async () => await api.send('DELETE', `${path}/remove`, requestFor(subject)),
    );
  const add = async ({ name }: Record<string, unknown>) => {
    await api.send('POST', `${path}/add`, { users: [name] });
    close();
    await act(`${String(name)} has the role dev`, async () => await Promise.resolve());
  };
  return (
    <section aria-labelledby="members-title">
      <h2 id="members-title">Members</h2>
      <p class="calm">
        They have the role dev: they use VMs and images of the namespace. People with an account at the
        identity provider of the cluster, if it has one, need no token.
      </p>
      {members.length === 0 ? <p class="calm">Nobody has the role yet.</p> : null}
      <table class="facts-table">
        <tbody>
          {members.map((subject) => (
            <tr key={`${subject.kind}/${subject.namespace}/${subject.name}`}>
              <th scope="row">{subject.name}</th>
              <td>{[subject.kind, subject.namespace].filter(Boolean).join(' of ')}</td>
              <td class="row-actions">
                {subject.kind === 'Group' ? null : (
                  <button
                    type="button"
                    class="small danger"
                    aria-label={`Remove ${subject.name}`}
                    onClick={() => remove(subject)}
                  >
                    Remove
                  </button>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      <button
        type="button"
        onClick={() =>
          show(
            <NameDialog
              title="Add a member"
              description="Name of the user, in the spelling of the API server."
              submit="Add"
              onSubmit={add}
              onClose={close}
            />,
          )
        }
      >
        Add a member…
      </button>
    </section>
  );
}

/** Returns the body that names the subject. */
function requestFor({ kind, name, namespace }: Subject): object {
  return kind === 'ServiceAccount' ? { serviceaccounts: [{ name, namespace }] } : { users: [name] };
}
