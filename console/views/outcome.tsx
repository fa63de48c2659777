/** The outcome of the last action, told in one line. */
export interface ActionOutcome {
  readonly isError: boolean;
  readonly text: string;
}

export function OutcomeLine({ outcome }: { readonly outcome: ActionOutcome | undefined }) {
  return (
    <p class={outcome?.isError === true ? 'error' : 'calm'} role="status">
      {outcome?.text}
    </p>
  );
}
