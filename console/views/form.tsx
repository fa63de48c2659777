/** Forms that are made from JSON Schemas. The mistakes that the server finds stand at their fields. */
import { useEffect, useId, useRef, useState } from 'preact/hooks';
import type { ComponentChildren } from 'preact';
import type { Api } from '../data/api.ts';
import { RefusedRequestError } from '../data/refusal.ts';
import { type FormName, type Forms, messageOf, readForms } from '../data/forms.ts';
import {
  type FormField,
  labelOf,
  type Mistakes,
  placeCauses,
  readForm,
  type Texts,
  formFields,
} from '../model/form.ts';

/** Part of a long form. Its fields are those whose path begins with one of these names. */
export interface FormSection {
  readonly title: string;
  readonly names: readonly string[];
  /** Whether the section is open at first. */
  readonly isOpen?: true;
}

/** Known values of some fields, by the paths of the fields. */
export type Suggestions = Readonly<Record<string, readonly string[]>>;

interface SchemaFormProps {
  readonly fields: readonly FormField[];
  /** Sections of the form. A field that no section has is in the last one. */
  readonly sections?: readonly FormSection[];
  readonly initial?: Texts;
  readonly suggestions?: Suggestions;
  /** Text of the button that sends the form, and its text while the server works. */
  readonly submit: string;
  readonly busy: string;
  /** Reads the values from the texts. The default takes each value. */
  readonly read?: (texts: Texts) => { readonly values: object; readonly mistakes: Mistakes };
  /** Sends the values. Its error stands in the form. */
  readonly onSubmit: (values: Record<string, unknown>) => Promise<void>;
  readonly onCancel?: () => void;
}

const NO_MISTAKES: Mistakes = new Map();

export function SchemaForm(props: SchemaFormProps) {
  const { fields, sections, initial = {}, submit, busy, onSubmit, onCancel } = props;
  const [texts, setTexts] = useState<Texts>(initial);
  const [mistakes, setMistakes] = useState(NO_MISTAKES);
  const [refusal, setRefusal] = useState<string>();
  const [isBusy, setBusy] = useState(false);
  const form = useRef<HTMLFormElement>(null);
  useEffect(() => {
    form.current?.querySelector<HTMLElement>('[aria-invalid="true"]')?.focus();
  }, [mistakes]);
  const send = async (event: Event) => {
    event.preventDefault();
    const { values, mistakes: found } = (props.read ?? ((given) => readForm(fields, given)))(texts);
    setMistakes(found);
    setRefusal(found.size === 0 ? undefined : FIX);
    if (found.size > 0) {
      return;
    }
    setBusy(true);
    try {
      await onSubmit(values as Record<string, unknown>);
    } catch (error) {
      const placed = placeRefusal(fields, error);
      setMistakes(placed.mistakes);
      setRefusal(placed.sentence);
    } finally {
      setBusy(false);
    }
  };
  const change = (path: string, text: string) => setTexts((before) => ({ ...before, [path]: text }));
  return (
    <form class="schema-form" ref={form} noValidate onSubmit={(event) => void send(event)}>
      {sectionsOf(fields, sections).map(({ title, isOpen, fields: own }) => (
        <Section
          key={title}
          title={title}
          isOpen={isOpen === true || own.some(({ path }) => mistakes.has(path))}
        >
          {own.map((field) => (
            <Field
              key={field.path}
              field={field}
              text={texts[field.path] ?? ''}
              mistake={mistakes.get(field.path)}
              suggestions={props.suggestions?.[field.path] ?? []}
              onChange={(text) => change(field.path, text)}
            />
          ))}
        </Section>
      ))}
      {refusal === undefined ? null : (
        <p class="error" role="alert">
          {refusal}
        </p>
      )}
      <div class="actions">
        <button type="submit" class="primary" disabled={isBusy}>
          {isBusy ? busy : submit}
        </button>
        {onCancel === undefined ? null : (
          <button type="button" onClick={onCancel}>
            Cancel
          </button>
        )}
      </div>
    </form>
  );
}

const FIX = 'Some values are not allowed. Each is named at its field.';

function placeRefusal(
  fields: readonly FormField[],
  error: unknown,
): { readonly mistakes: Mistakes; readonly sentence: string } {
  if (!(error instanceof RefusedRequestError)) {
    return { mistakes: NO_MISTAKES, sentence: messageOf(error) };
  }
  const { mistakes, others } = placeCauses(fields, error.causes);
  return {
    mistakes,
    sentence: mistakes.size === 0 ? error.message : [FIX, ...others].join(' '),
  };
}

interface OwnSection extends Pick<FormSection, 'title' | 'isOpen'> {
  readonly fields: readonly FormField[];
}

/** Returns the sections with their fields. A form without sections has one without a title. */
function sectionsOf(
  fields: readonly FormField[],
  sections: readonly FormSection[] | undefined,
): readonly OwnSection[] {
  if (sections === undefined) {
    return [{ title: '', isOpen: true, fields }];
  }
  const last = sections.at(-1);
  const named = new Set(sections.flatMap(({ names }) => names));
  const rootOf = ({ path }: FormField) => path.split('.')[0] ?? '';
  return sections.map((section) => ({
    ...section,
    fields: [
      ...section.names.flatMap((name) => fields.filter((field) => rootOf(field) === name)),
      ...(section === last ? fields.filter((field) => !named.has(rootOf(field))) : []),
    ],
  }));
}

interface SectionProps {
  readonly title: string;
  readonly isOpen: boolean;
  readonly children: ComponentChildren;
}

function Section({ title, isOpen, children }: SectionProps) {
  return title === '' ? (
    <div class="fields">{children}</div>
  ) : (
    <details class="form-section" open={isOpen}>
      <summary>{title}</summary>
      <div class="fields">{children}</div>
    </details>
  );
}

interface FieldProps {
  readonly field: FormField;
  readonly text: string;
  readonly mistake: string | undefined;
  readonly suggestions: readonly string[];
  readonly onChange: (text: string) => void;
}

function Field({ field, text, mistake, suggestions, onChange }: FieldProps) {
  const id = useId();
  const { path, isRequired } = field;
  return (
    <div class="field">
      <label for={id}>
        {labelOf(path)}
        {isRequired ? <span class="required"> (required)</span> : null}
      </label>
      <Input {...{ id, field, text, mistake, suggestions, onChange }} />
      <small id={`${id}-help`}>
        <Help text={helpOf(field)} />
      </small>
      {mistake === undefined ? null : (
        <p class="error" id={`${id}-error`}>
          {mistake}
        </p>
      )}
    </div>
  );
}

/** Ends of descriptions that name the bounds already. */
const NAMES_BOUNDS = /\bfrom \S+ to \S+\.?$/i;

function helpOf({ description, minimum, maximum, kind }: FormField): string {
  const bounds =
    minimum === undefined || maximum === undefined || NAMES_BOUNDS.test(description)
      ? ''
      : ` From ${minimum} to ${maximum}.`;
  const form =
    kind === 'lines' ? ' One on each line.' : kind === 'pairs' ? ' One key=value on each line.' : '';
  return `${description}${bounds}${form}`;
}

/** Shows a text, with the names between backticks as code. */
function Help({ text }: { readonly text: string }) {
  // Each second part was between backticks.
  return (
    <>{text.split('`').map((part, index) => (index % 2 === 1 ? <code key={index}>{part}</code> : part))}</>
  );
}

const FLAGS = [
  ['true', 'Yes'],
  ['false', 'No'],
] as const;

function Input({ id, field, text, mistake, suggestions, onChange }: FieldProps & { readonly id: string }) {
  const { kind, choices } = field;
  const shared = {
    id,
    value: text,
    'aria-describedby': mistake === undefined ? `${id}-help` : `${id}-error ${id}-help`,
    'aria-invalid': mistake !== undefined,
  };
  if (kind === 'choice' || kind === 'flag') {
    const options = kind === 'flag' ? FLAGS : choices.map((one) => [one, one] as const);
    return (
      <select {...shared} onChange={({ currentTarget }) => onChange(currentTarget.value)}>
        <option value="">Default</option>
        {options.map(([value, name]) => (
          <option key={value} value={value}>
            {name}
          </option>
        ))}
      </select>
    );
  }
  if (kind === 'lines' || kind === 'pairs' || kind === 'paragraph') {
    return (
      <textarea
        {...shared}
        rows={3}
        spellcheck={false}
        onInput={({ currentTarget }) => onChange(currentTarget.value)}
      />
    );
  }
  return (
    <>
      <input
        {...shared}
        {...INPUTS[kind]}
        autocomplete="off"
        spellcheck={false}
        {...(suggestions.length > 0 && { list: `${id}-list` })}
        onInput={({ currentTarget }) => onChange(currentTarget.value)}
      />
      {suggestions.length === 0 ? null : (
        <datalist id={`${id}-list`}>
          {suggestions.map((one) => (
            <option key={one} value={one} />
          ))}
        </datalist>
      )}
    </>
  );
}

const INPUTS = {
  integer: { type: 'text', inputMode: 'numeric' },
  number: { type: 'text', inputMode: 'decimal' },
  text: { type: 'text' },
  time: { type: 'datetime-local', step: 1 },
} as const;

interface WithFieldsProps {
  readonly api: Api;
  readonly form: FormName;
  readonly children: (fields: readonly FormField[]) => ComponentChildren;
}

/** Reads the schema of a form, and shows the children with its fields. */
export function WithFields({ api, form, children }: WithFieldsProps) {
  const [forms, setForms] = useState<Forms>();
  const [error, setError] = useState<string>();
  useEffect(() => {
    let isShown = true;
    readForms(api).then(
      (read) => isShown && setForms(read),
      (reason: unknown) => isShown && setError(messageOf(reason)),
    );
    return () => {
      isShown = false;
    };
  }, [api]);
  if (error !== undefined) {
    return (
      <p class="error" role="alert">
        The form could not be read: {error}. Open it again to try again.
      </p>
    );
  }
  return forms === undefined ? (
    <p class="loading" role="status">
      Reading the form…
    </p>
  ) : (
    <>{children(formFields(forms[form]))}</>
  );
}
