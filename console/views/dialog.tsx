/** Dialogs over the page, with a title. The browser keeps the focus in them. */
import { useId, useLayoutEffect, useRef } from 'preact/hooks';
import type { ComponentChildren } from 'preact';

interface DialogProps {
  readonly title: string;
  readonly onClose: () => void;
  readonly children: ComponentChildren;
}

export function Dialog({ title, onClose, children }: DialogProps) {
  const element = useRef<HTMLDialogElement>(null);
  const id = useId();
  useLayoutEffect(() => {
    const before = document.activeElement;
    element.current?.showModal();
    // The browser gives the focus back only when the dialog is closed, and not when it is removed.
    return () => {
      if (before instanceof HTMLElement) {
        before.focus();
      }
    };
  }, []);
  return (
    <dialog ref={element} aria-labelledby={id} onClose={onClose}>
      <h2 id={id}>{title}</h2>
      {children}
    </dialog>
  );
}

interface ConfirmProps {
  readonly title: string;
  readonly children: ComponentChildren;
  /** Text of the button that acts. */
  readonly act: string;
  readonly onAct: () => void;
  readonly onClose: () => void;
}

/** Question before something that cannot be undone. */
export function Confirm({ title, children, act, onAct, onClose }: ConfirmProps) {
  return (
    <Dialog title={title} onClose={onClose}>
      {children}
      <div class="actions">
        <button type="button" onClick={onClose}>
          Cancel
        </button>
        <button
          type="button"
          class="danger"
          onClick={() => {
            onClose();
            onAct();
          }}
        >
          {act}
        </button>
      </div>
    </Dialog>
  );
}
