package io.lineside.client;

import io.lineside.v1.ToolAnswer;
import io.lineside.v1.ToolCall;

/** How one call of a batch ended: with an answer or with an error. */
public sealed interface BatchResult {
    /** The call's place in the batch, from 0. */
    int position();

    /** The call, as it was handed in. */
    ToolCall call();

    /** The answer, or else the error is thrown. */
    ToolAnswer answer();

    /** The call has its answer. */
    record Answered(int position, ToolCall call, ToolAnswer answer) implements BatchResult {}

    /** The call has none. */
    record Failed(int position, ToolCall call, LinesideException error) implements BatchResult {
        @Override
        public ToolAnswer answer() {
            throw error;
        }
    }
}
