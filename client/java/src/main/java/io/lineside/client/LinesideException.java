package io.lineside.client;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.QuotaFailure;
import com.google.rpc.RetryInfo;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.protobuf.StatusProto;
import io.lineside.v1.DispatchError;
import io.lineside.v1.ErrorKind;
import io.lineside.v1.Outcome;
import java.net.ConnectException;
import java.time.Duration;
import java.util.Optional;
import java.util.OptionalLong;
import javax.net.ssl.SSLHandshakeException;

/** How a call ended that has no answer. Before anything is sent again, look at {@link #outcome}. */
public final class LinesideException extends RuntimeException {
    private static final long serialVersionUID = 1;
    private static final Metadata.Key<String> PUSHBACK =
            Metadata.Key.of("grpc-retry-pushback-ms", Metadata.ASCII_STRING_MARSHALLER);

    private final com.google.rpc.Status status;
    private final Outcome outcome;
    private final Long pushbackMs;

    private LinesideException(com.google.rpc.Status status, Outcome outcome, Long pushbackMs, Throwable cause) {
        super(status.getMessage(), cause);
        this.status = status;
        this.outcome = outcome;
        this.pushbackMs = pushbackMs;
    }

    /** gRPC's status code. */
    public Status.Code code() {
        return Status.fromCodeValue(status.getCode()).getCode();
    }

    /** Why; unspecified when gRPC itself or something between made the error: a lost connection, a deadline here. */
    public ErrorKind kind() {
        return dispatchError().map(DispatchError::getKind).orElse(ErrorKind.ERROR_KIND_UNSPECIFIED);
    }

    /** Whether the tool took effect: NOT_RUN, DONE, UNKNOWN or IN_PROGRESS. */
    public Outcome outcome() {
        return outcome;
    }

    /** How many attempts the service started; 0 also when it said nothing. */
    public int attempts() {
        return dispatchError().map(DispatchError::getAttempts).orElse(0);
    }

    /** The earliest time from now at which a repeat can help; empty when nobody knows. */
    public Optional<Duration> retryDelay() {
        return detail(RetryInfo.class)
                .map(info -> Duration.ofSeconds(info.getRetryDelay().getSeconds(), info.getRetryDelay().getNanos()));
    }

    /** The service's own account: call id, trace id, what a plan should do next. */
    public Optional<DispatchError> dispatchError() {
        return detail(DispatchError.class);
    }

    /** The reason as a constant, and the message's changing parts. */
    public Optional<ErrorInfo> errorInfo() {
        return detail(ErrorInfo.class);
    }

    /** Which arguments or fields are wrong. */
    public Optional<BadRequest> badRequest() {
        return detail(BadRequest.class);
    }

    /** Which quota or budget has no room. */
    public Optional<QuotaFailure> quotaFailure() {
        return detail(QuotaFailure.class);
    }

    /** Any other detail, by its type: {@code PreconditionFailure}, {@code ResourceInfo}. */
    public <T extends Message> Optional<T> detail(Class<T> type) {
        for (Any detail : status.getDetailsList()) {
            if (detail.is(type)) {
                try {
                    return Optional.of(detail.unpack(type));
                } catch (InvalidProtocolBufferException e) {
                    return Optional.empty(); // not what it says it is: as good as absent
                }
            }
        }
        return Optional.empty();
    }

    /** The whole of it, as it came. */
    public com.google.rpc.Status status() {
        return status;
    }

    /** What the service says about sending again, ms; negative: never. */
    public OptionalLong pushbackMs() {
        return pushbackMs == null ? OptionalLong.empty() : OptionalLong.of(pushbackMs);
    }

    /** Whether the connection broke: nobody of the service said anything. */
    public boolean isLost() {
        return code() == Status.Code.UNAVAILABLE && dispatchError().isEmpty();
    }

    /**
     * Whether a service that is about to stop, or has too many RPCs at once, let the RPC drop: cancelled, but by no word
     * of its own and none of this side's (a status that gRPC makes here has a cause).
     */
    boolean isDropped() {
        Throwable end = getCause();
        boolean isMadeHere = end == null || Status.fromThrowable(end).getCause() != null;
        return code() == Status.Code.CANCELLED && dispatchError().isEmpty() && !isMadeHere;
    }

    @Override
    public String toString() {
        String what = dispatchError()
                .map(told -> told.getKind() + " after " + told.getAttempts() + " attempts")
                .orElseGet(() -> code().name());
        return "lineside: " + what + ": " + status.getMessage() + " (outcome " + outcome + ")";
    }

    /** How an RPC ended, also one of another service's stub. */
    public static LinesideException of(Throwable end) {
        Status said = Status.fromThrowable(end);
        Metadata trailers = Optional.ofNullable(Status.trailersFromThrowable(end)).orElseGet(Metadata::new);
        com.google.rpc.Status status = StatusProto.fromStatusAndTrailers(said, trailers);
        if (said.getCause() != null && status.getDetailsCount() == 0) {
            status = status.toBuilder().setMessage(withCause(said)).build();
        }
        boolean neverConnected =
                said.getCause() instanceof ConnectException || said.getCause() instanceof SSLHandshakeException;
        Outcome outcome = neverConnected ? Outcome.OUTCOME_NOT_RUN : outcomeOf(status);
        return new LinesideException(status, outcome, milliseconds(trailers.get(PUSHBACK)), end);
    }

    /** gRPC says "io exception" of whatever kept it from connecting; the reason is at the bottom of the causes. */
    private static String withCause(Status said) {
        Throwable cause = said.getCause();
        while (cause.getCause() != null && cause.getCause() != cause) {
            cause = cause.getCause();
        }
        String first = said.getDescription() == null ? said.getCode().name() : said.getDescription().lines().findFirst().orElse("");
        return first + ": " + (cause.getMessage() == null ? cause.toString() : cause.getMessage());
    }

    /** A status in a message: how an item of a batch ended. */
    public static LinesideException of(com.google.rpc.Status status) {
        return new LinesideException(status, outcomeOf(status), null, null);
    }

    /** An error that this side makes by itself. */
    static LinesideException of(Status.Code code, ErrorKind kind, Outcome outcome, String message) {
        com.google.rpc.Status.Builder status =
                com.google.rpc.Status.newBuilder().setCode(code.value()).setMessage(message);
        if (kind != ErrorKind.ERROR_KIND_UNSPECIFIED) {
            status.addDetails(Any.pack(DispatchError.newBuilder()
                    .setKind(kind)
                    .setOutcome(outcome)
                    .setMessage(message)
                    .build()));
        }
        return new LinesideException(status.build(), outcome, null, null);
    }

    /** The same with another outcome. */
    LinesideException with(Outcome other) {
        return new LinesideException(status, other, pushbackMs, getCause());
    }

    /** As it reads when an earlier sending was lost on its way, its outcome open. */
    LinesideException sinceLost() {
        boolean isAboutAnExecution =
                dispatchError().filter(told -> !told.getCallId().isEmpty()).isPresent();
        return isAboutAnExecution || outcome != Outcome.OUTCOME_NOT_RUN ? this : with(Outcome.OUTCOME_UNKNOWN);
    }

    /** What the service says; of a bare status that much is known: what was refused before it was read did not run. */
    private static Outcome outcomeOf(com.google.rpc.Status status) {
        for (Any detail : status.getDetailsList()) {
            if (detail.is(DispatchError.class)) {
                try {
                    return detail.unpack(DispatchError.class).getOutcome();
                } catch (InvalidProtocolBufferException e) {
                    return Outcome.OUTCOME_UNKNOWN;
                }
            }
        }
        return switch (Status.fromCodeValue(status.getCode()).getCode()) {
            case UNAUTHENTICATED, PERMISSION_DENIED, UNIMPLEMENTED, INVALID_ARGUMENT -> Outcome.OUTCOME_NOT_RUN;
            default -> Outcome.OUTCOME_UNKNOWN;
        };
    }

    private static Long milliseconds(String value) {
        return value != null && value.matches("-?\\d{1,18}") ? Long.valueOf(value) : null;
    }
}
