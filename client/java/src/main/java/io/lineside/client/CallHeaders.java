package io.lineside.client;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ForwardingClientCall.SimpleForwardingClientCall;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.lineside.v1.TraceContext;
import io.opentelemetry.api.trace.propagation.W3CTraceContextPropagator;
import io.opentelemetry.context.Context;
import io.opentelemetry.context.propagation.TextMapSetter;
import java.util.Optional;

/** What every RPC carries: the token, and the span that is current, as W3C headers; it stands before headers that are there. */
final class CallHeaders implements ClientInterceptor {
    private static final Metadata.Key<String> AUTHORIZATION = ascii("authorization");
    private static final TextMapSetter<Metadata> REPLACE = (headers, name, value) -> {
        headers.discardAll(ascii(name));
        headers.put(ascii(name), value);
    };
    private static final TextMapSetter<TraceContext.Builder> FIELDS = (trace, name, value) -> {
        if (name.equals("traceparent")) {
            trace.setTraceparent(value);
        } else {
            trace.setTracestate(value);
        }
    };

    private final Optional<String> token;

    CallHeaders(Optional<String> token) {
        this.token = token;
    }

    @Override
    public <Q, A> ClientCall<Q, A> interceptCall(MethodDescriptor<Q, A> method, CallOptions options, Channel next) {
        Context span = Context.current();
        return new SimpleForwardingClientCall<>(next.newCall(method, options)) {
            @Override
            public void start(Listener<A> listener, Metadata headers) {
                token.ifPresent(secret -> headers.put(AUTHORIZATION, "Bearer " + secret));
                W3CTraceContextPropagator.getInstance().inject(span, headers, REPLACE);
                super.start(listener, headers);
            }
        };
    }

    /** The span of a context, as a call of a batch carries it. */
    static TraceContext traceOf(Context span) {
        TraceContext.Builder trace = TraceContext.newBuilder();
        W3CTraceContextPropagator.getInstance().inject(span, trace, FIELDS);
        return trace.build();
    }

    private static Metadata.Key<String> ascii(String name) {
        return Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER);
    }
}
